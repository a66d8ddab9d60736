"""One draft model as a level of a pyramid: laws over the target's vocabulary, and what it has read this round."""

import time
from collections.abc import Sequence

import torch

from sgl_spec.draft.own_kv import common
from sgl_spec.sglang_plugin.chains import ChainOrder, filters
from sgl_spec.sglang_plugin.draft_model import DraftModel
from sgl_spec.sglang_plugin.passes import Span
from sgl_spec.verify.processors import target_probs

APART = 16  # unread tokens that go into a pass of their own


class EngineLevel:
    """Implements `sgl_spec.draft.pyramid.Level` for the orders of one call.

    Invariant: for order i the model has KV of the order's text before `start[i]`, and of `read[i]` from there on.
    """

    def __init__(self, model: DraftModel, orders: list[ChainOrder], size: int) -> None:
        self.model, self.orders, self.size = model, orders, size
        held = model.forward.held
        self.start = [
            min(model.read_until(held(order.pool_row, 0, order.committed)), len(order.unread) - 1) for order in orders
        ]
        self.read: list[list[int]] = [[] for _ in orders]
        self.catchup_ms = self.pass_ms = 0.0
        self.catchup_tokens = self.passes = self.rows = 0

    def laws(
        self, rows: Sequence[int], texts: Sequence[Sequence[int]], guesses: torch.Tensor, lens: torch.Tensor
    ) -> torch.Tensor:
        """As `Level.laws`. Greedy requests get their law at temperature 1: they are drawn and judged by its argmax."""
        begun, counts = time.perf_counter(), lens.tolist()
        spans = []
        for i, text, row, count in zip(rows, texts, guesses.tolist(), counts, strict=True):
            wanted = [*text[self.start[i] :], *row[:count]]
            keep = min(common(self.read[i], wanted), len(wanted) - 1 - count)
            spans.append(Span(self.orders[i].pool_row, self.start[i] + keep, wanted[keep:]))
            self.read[i] = wanted
        late = [Span(s.pool_row, s.start, s.tokens[: -1 - n]) for s, n in zip(spans, counts, strict=True)]
        unread = sum(len(span.tokens) for span in late)
        if unread > APART:  # text that the model has not read: its logits are not wanted
            self.model.forward.logits([span for span in late if span.tokens], every_row=False)
            spans = [
                Span(s.pool_row, s.start + len(t.tokens), s.tokens[len(t.tokens) :])
                for s, t in zip(spans, late, strict=True)
            ]
            self.catchup_tokens += unread
            self.catchup_ms += (time.perf_counter() - begun) * 1e3
            begun = time.perf_counter()
        logits = self.model.forward.logits(spans, every_row=True)
        ends = torch.tensor([len(span.tokens) for span in spans]).cumsum(0).tolist()
        wanted_rows = [at for end, n in zip(ends, counts, strict=True) for at in range(end - n - 1, end)]
        laws = self._laws(logits[wanted_rows], rows, counts)
        self.pass_ms += (time.perf_counter() - begun) * 1e3
        self.passes += 1
        self.rows += len(rows)
        return laws

    def _laws(self, logits: torch.Tensor, rows: Sequence[int], counts: list[int]) -> torch.Tensor:
        damaged = logits.isnan().any(dim=-1, keepdim=True)  # a damaged draft knows nothing: any token is as likely
        logits = torch.where(damaged, 0.0, logits)
        samplings = [self.orders[i].sampling for i, n in zip(rows, counts, strict=True) for _ in range(n + 1)]
        probs = torch.softmax(logits, dim=-1)
        sampled = [at for at, sampling in enumerate(samplings) if sampling is not None]
        if sampled:
            chosen = [s for s in samplings if s is not None]
            probs[sampled] = target_probs(logits[sampled], filters(chosen, logits.device))
        laws = probs.new_zeros(len(rows), max(counts) + 1, self.size)
        hot, at = self.model.hot_ids, 0
        for line, count in enumerate(counts):
            part = probs[at : at + count + 1]
            if hot is None:
                laws[line, : count + 1, : part.shape[1]] = part
            else:
                laws[line, : count + 1, hot] = part
            at += count + 1
        return laws

    def settle(self, i: int, committed: list[int]) -> int:
        """The target committed this text of order i; note and return how much of it the model has read."""
        start = self.start[i]
        now = start + common(self.read[i], committed[start:])
        self.model.mark(self.orders[i].pool_row, start, now)
        return now
