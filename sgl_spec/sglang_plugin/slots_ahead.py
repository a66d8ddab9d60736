"""SGLang reserves KV slots for two rounds before each: one round needs half of them, so most find theirs reserved.

Its second round is one in flight, which there is none of here (the schedules do not overlap). Reserving, and asking
before whether the pool has room, is a handful of tensor operations, each slow after a forward has emptied the caches.

SGLang's table of slots has a row of the context length and a little more. A request at the end of its context reserves
past it: the row is made long enough, else it writes over its neighbour's and its slots are never freed.
"""

import functools
from typing import Any

from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache import kv_cache_configurator
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.speculative import eagle_utils


def install(needed: int) -> None:
    """Let this process, before its pools are made, reserve only when a request has fewer than `needed` slots ahead."""
    reserve = eagle_utils.eagle_prepare_for_decode
    has_room = ScheduleBatch.check_decode_mem
    beyond_context = kv_cache_configurator.get_req_to_token_extra_context_len

    @functools.wraps(reserve)
    def prepare(batch: Any) -> None:
        if not are_ready(batch, needed):
            reserve(batch)
            return
        batch.maybe_evict_swa()
        for req in batch.reqs:
            req.decode_batch_idx += 1

    @functools.wraps(has_room)
    def ready_or_room(batch: Any, selected_indices: list[int] | None = None) -> bool:
        return (selected_indices is None and are_ready(batch, needed)) or bool(has_room(batch, selected_indices))

    @functools.wraps(beyond_context)
    def long_enough() -> int:
        return max(int(beyond_context()), int(get_alloc_reserve_per_decode()))

    eagle_utils.eagle_prepare_for_decode = prepare
    ScheduleBatch.check_decode_mem = ready_or_room
    kv_cache_configurator.get_req_to_token_extra_context_len = long_enough


def are_ready(batch: Any, needed: int) -> bool:
    """Whether all requests hold enough slots and nothing else of SGLang's preparation is due."""
    return not batch.sampling_info.penalizer_orchestrator.is_required and all(
        req.kv.kv_allocated_len - req.kv.kv_committed_len >= needed for req in batch.reqs
    )
