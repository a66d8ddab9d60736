"""One forward of a model over chosen positions of chosen requests: what verify, catch-up and chains share.

A pass reads tokens at positions [start_i, start_i + len_i) of each request, writes their KV to the slots
that the scheduler reserved for these positions, and returns logits. Lengths may differ between requests.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

from sgl_spec.cpu.argmax import argmax

Slots = NDArray[np.integer[Any]]  # of KV pools, on the host
Held = Callable[[int, int, int], Slots]  # as `StockPass.held`


class Span(NamedTuple):
    """The positions of one request that a pass reads: `tokens` at `start`, `start` + 1, ..."""

    pool_row: int  # the request's row in req_to_token
    start: int
    tokens: list[int]


class StockPass:
    """A pass through SGLang's own model runner, for every architecture and device."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.device = runner.device
        self.req_to_token = runner.req_to_token_pool.req_to_token
        self.table = self.req_to_token.numpy() if self.req_to_token.device.type == "cpu" else None  # the same memory

    def logits(self, spans: list[Span], every_row: bool) -> torch.Tensor:
        """Return float32 logits: [sum of lengths, V] if `every_row`, else [requests, V] of the last rows."""
        return self.runner.forward(self._forward_batch(spans, every_row)).logits_output.next_token_logits

    def best(self, spans: list[Span]) -> list[int]:
        """Return the token of the largest logit after each position, [sum of lengths]."""
        return argmax(self.logits(spans, every_row=True))

    def held(self, pool_row: int, start: int, end: int) -> Slots:
        """Return the KV slots of a request's positions [start, end)."""
        if self.table is not None:
            return self.table[pool_row, start:end]
        return self.req_to_token[pool_row, start:end].numpy(force=True)

    def _forward_batch(self, spans: list[Span], every_row: bool) -> ForwardBatch:
        device = self.device
        starts = [s.start for s in spans]
        lens = [len(s.tokens) for s in spans]
        ends = [start + length for start, length in zip(starts, lens, strict=True)]
        slots = [self.req_to_token[s.pool_row, start:end] for s, start, end in zip(spans, starts, ends, strict=True)]
        tokens = [token for s in spans for token in s.tokens]
        positions = [start + i for start, length in zip(starts, lens, strict=True) for i in range(length)]
        begins = [sum(lens[:i]) for i in range(len(lens))]
        batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY if every_row else ForwardMode.EXTEND,
            batch_size=len(spans),
            input_ids=torch.tensor(tokens, dtype=torch.int64, device=device),
            req_pool_indices=torch.tensor([s.pool_row for s in spans], dtype=torch.int64, device=device),
            seq_lens=torch.tensor(ends, dtype=torch.int64, device=device),
            seq_lens_cpu=torch.tensor(ends, dtype=torch.int64),
            seq_lens_sum=sum(ends),
            out_cache_loc=torch.cat(slots).long(),
            positions=torch.tensor(positions, dtype=torch.int64, device=device),
            extend_num_tokens=len(tokens),
            extend_seq_lens=torch.tensor(lens, dtype=torch.int32, device=device),
            extend_prefix_lens=torch.tensor(starts, dtype=torch.int32, device=device),
            extend_start_loc=torch.tensor(begins, dtype=torch.int32, device=device),
            extend_seq_lens_cpu=lens,
            extend_prefix_lens_cpu=starts,
            spec_algorithm=self.runner.spec_algorithm,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        translator = self.runner.kv_index_translator
        translator.own_plan(batch).bind(batch, translator)
        return batch
