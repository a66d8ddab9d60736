"""Penalties of requests that were put back for want of KV and are read again.

SGLang makes new penalizers for the batch that reads a text and tells them nothing of what its requests have said: the
one token that such a request draws there would be drawn without penalties, and with the stop tokens of `min_new_tokens`
held back.
"""

from typing import Any

import torch
from sglang.srt.sampling.penaltylib.orchestrator import BatchedPenalizerOrchestrator


class Rows:
    """What penalizers read of a batch; they keep a weak reference to it."""

    def __init__(self, req: Any, device: Any) -> None:
        self.reqs, self.device = [req], device


def replay(batch: Any) -> None:
    """Tell the penalizers of a batch that reads texts what its requests have said already."""
    new = batch.sampling_info.penalizer_orchestrator
    if not new.is_required or not any(req.output_ids for req in batch.reqs):
        return
    parts = [(Rows(req, batch.device), req) for req in batch.reqs]
    told = [_told(rows, req, new) for rows, req in parts]
    whole, held = told[0], parts[0][0]
    for part, (_, req) in zip(told[1:], parts[1:], strict=True):
        whole.merge(part)  # before its rows are known to be there, as it asks
        held.reqs.append(req)
    whole.batch = batch
    batch.sampling_info.penalizer_orchestrator = whole


def _told(rows: Rows, req: Any, new: Any) -> Any:
    """Penalizers of one request that know its output."""
    made = BatchedPenalizerOrchestrator(new.vocab_size, rows, set(new.penalizers))
    for token in req.output_ids:
        made.cumulate_output_tokens(torch.tensor([token], device=rows.device))
    return made
