"""The target's law p at every position of a chain, each with its own history.

SGLang 0.5.23 without speculation, per decoded token (`SamplingBatchInfo.apply_logits_bias`, then `Sampler`):
additive penalties (frequency, presence, min_new_tokens) are summed and added, then repetition scales, then
the grammar mask, then logit bias, then custom processors, then non-finite values are replaced; a batch that
is greedy throughout takes argmax, every other divides by the temperature, takes softmax, and keeps what
top-k, top-p and min-p keep (`top_k_top_p_min_p_sampling_from_probs_torch`: all three judged on the same
sorted, unrenormalised probabilities). SGLang's verify repeats one penalty for the whole chain; here row j of
request i counts the output so far plus its first j guesses, which is what makes the chain exact.

Rows: the ragged or padded verify pass flattened, [rows, V]; `Rows` says whose each one is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

LEADING = 1024  # sorted columns tried before a whole row of the vocabulary is sorted


@dataclass(slots=True)
class Penalties:
    """One request's penalties and the output tokens that they count. `add` every committed token once."""

    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0
    min_new_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    counts: Counter[int] = field(default_factory=Counter)
    emitted: int = 0

    @property
    def active(self) -> bool:
        """Whether any row can change."""
        return bool(self.frequency or self.presence or self.repetition != 1.0 or self.min_new_tokens > 0)

    def add(self, tokens: Iterable[int]) -> None:
        """Count committed output tokens."""
        for token in tokens:
            self.counts[token] += 1
            self.emitted += 1


@dataclass(slots=True)
class Rows:
    """Where the rows of a verify pass come from. Row starts[i] + j is request i after j of its guesses."""

    starts: Sequence[int]
    lens: Sequence[int]  # guesses; request i owns lens[i] + 1 rows
    drafts: Sequence[Sequence[int]]  # the guesses, lens[i] ids each

    def owner(self) -> list[int]:
        """The request of each row, in row order."""
        return [i for i, length in enumerate(self.lens) for _ in range(length + 1)]


@dataclass(slots=True)
class Filters:
    """Per-row sampling parameters; tensors of [rows] on the logits' device. top_k <= 1 means greedy."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    any_filter: bool = True  # host-side: some sampled row has top_k, top_p or min_p set
    any_greedy: bool = True  # host-side: some row is greedy


def adjust_logits(
    logits: Tensor,
    rows: Rows,
    penalties: Sequence[Penalties | None] = (),
    grammar: Callable[[Tensor], None] | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Penalties, grammar mask and bias, in SGLang's order; in place, and returned.

    logits [rows, V] float32; penalties per request (not yet counting this round's guesses); `grammar` masks
    logits in place, its rows already advanced along the guesses; bias [B, V].
    """
    import torch

    for index, state in enumerate(penalties):
        if state is not None and state.active:
            _penalise(logits, rows.starts[index], rows.drafts[index][: rows.lens[index]], state)
    if grammar is not None:
        grammar(logits)
    if bias is not None:
        logits.add_(bias[torch.tensor(rows.owner(), device=bias.device)])
    return logits


def target_probs(logits: Tensor, filters: Filters) -> Tensor:
    """p [rows, V], each row summing to 1, from adjusted logits; greedy rows are one-hot at argmax.

    float32 in, float32 out (float64 stays float64). The logits are left as they are.
    """
    import torch

    p = torch.softmax(logits / filters.temperature[:, None], dim=-1)
    if filters.any_filter:
        p = keep(p, filters.top_k, filters.top_p, filters.min_p)
    if filters.any_greedy:
        greedy = filters.top_k <= 1
        best = torch.zeros_like(p).scatter_(1, logits.argmax(dim=-1, keepdim=True), 1.0)
        p = torch.where(greedy[:, None], best, p)
    return p


def keep(p: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Zero what top-k, top-p and min-p drop, and renormalise. p [rows, V]; the others [rows].

    Rank r (from 0) stays if r < top_k, the mass before it is <= top_p, and its p >= min_p * the largest p.
    Rows whose kept part lies within the first `LEADING` ranks are never sorted whole.
    """
    import torch

    width = p.shape[1]
    head = min(LEADING, width)
    whole = (top_k >= width) & (top_p >= 1.0) & (min_p <= 0.0)
    top, ids = torch.topk(p, head, dim=-1, sorted=True)
    kept = _cut(top, top_k, top_p, min_p)
    result = torch.zeros_like(p).scatter_(1, ids, kept)
    if head < width:
        long = torch.nonzero((kept[:, -1] > 0.0) & ~whole)[:, 0]
        if len(long):
            sorted_p, order = p[long].sort(dim=-1, descending=True)
            tail = _cut(sorted_p, top_k[long], top_p[long], min_p[long])
            result[long] = torch.zeros_like(sorted_p).scatter_(1, order, tail)
    return torch.where(whole[:, None], p, result.div_(result.sum(dim=-1, keepdim=True)))


def _cut(descending: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    import torch

    rank = torch.arange(descending.shape[1], device=descending.device)
    before = descending.cumsum(dim=-1) - descending
    drop = (rank >= top_k[:, None]) | (before > top_p[:, None])
    drop |= descending < descending[:, :1] * min_p[:, None]
    return descending.masked_fill(drop, 0.0)


def _penalise(logits: Tensor, start: int, drafts: Sequence[int], state: Penalties) -> None:
    """Apply one request's penalties to its rows; only the columns of seen tokens are touched."""
    import torch

    counts = Counter(state.counts)
    for column in range(len(drafts) + 1):
        row = logits[start + column]
        if counts and (state.frequency or state.presence or state.repetition != 1.0):
            ids = torch.tensor(list(counts), dtype=torch.int64, device=logits.device)
            often = _repeated(state.frequency, list(counts.values()))
            minus = torch.tensor(often, dtype=torch.float32, device=logits.device) + state.presence
            value = row[ids] - minus
            if state.repetition != 1.0:
                value = torch.where(value < 0, value * state.repetition, value / state.repetition)
            row[ids] = value
        if state.emitted + column < state.min_new_tokens and state.stop_ids:
            row[torch.tensor(state.stop_ids, device=logits.device)] = float("-inf")
        if column < len(drafts):
            counts[drafts[column]] += 1


@lru_cache(maxsize=64)
def _sums(penalty: float, most: int) -> tuple[float, ...]:
    """The float32 sums of 0..most penalties, added one after the other."""
    step, total, sums = np.float32(penalty), np.float32(0.0), [0.0]
    for _ in range(most):
        total = np.float32(total + step)
        sums.append(float(total))
    return tuple(sums)


def _repeated(penalty: float, times: Sequence[int]) -> list[float]:
    """`penalty` added up `times` times in float32, as SGLang cumulates it (not the rounded product)."""
    sums = _sums(penalty, 1 << max(times).bit_length())
    return [sums[count] for count in times]
