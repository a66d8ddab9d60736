"""SGLang reserves KV slots for two rounds before each: one round needs half of them, so most find theirs reserved.

Its second round is one in flight, which there is none of here (the schedules do not overlap). Reserving is a handful of
tensor operations, each slow after a forward has emptied the caches.
"""

import functools
from typing import Any

from sglang.srt.speculative import eagle_utils


def install(needed: int) -> None:
    """Let this process reserve slots only when a request holds fewer than `needed` beyond its text."""
    reserve = eagle_utils.eagle_prepare_for_decode

    @functools.wraps(reserve)
    def prepare(batch: Any) -> None:
        if not are_ready(batch, needed):
            reserve(batch)
            return
        batch.maybe_evict_swa()
        for req in batch.reqs:
            req.decode_batch_idx += 1

    eagle_utils.eagle_prepare_for_decode = prepare


def are_ready(batch: Any, needed: int) -> bool:
    """Whether all requests hold enough slots and nothing else of SGLang's preparation is due."""
    return not batch.sampling_info.penalizer_orchestrator.is_required and all(
        req.kv.kv_allocated_len - req.kv.kv_committed_len >= needed for req in batch.reqs
    )
