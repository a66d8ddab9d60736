"""SGLang's adaptive rule (`adaptive_spec_params.py`, 0.5.23): a moving average of accepted drafts over the
batch walks through candidate K, which depend on the batch size. Written from its description: weight 0.2 for
the newest batch, ten batches of warm-up, a decision every fifth batch; down to the next smaller candidate c
while the average is <= c - 0.5 + down (0.5 + down for c = 0), up while it is > K - 0.5 + up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sgl_spec.control.base import OneThreshold, RequestView, RoundRecord, capped

WEIGHT = 0.2
WARM_UP = 10
EVERY = 5


@dataclass(slots=True)
class Tier:
    """One range of batch sizes: its candidates, its margins and its moving average."""

    candidates: tuple[int, ...]
    down: float
    up: float
    k: int
    average: float
    batches: int = 0

    def update(self, accepted: float) -> None:
        """Feed the mean number of accepted drafts of one batch."""
        if self.k > 0:
            self.average += WEIGHT * (accepted - self.average)
        self.batches += 1
        if self.batches > WARM_UP and (self.batches - WARM_UP) % EVERY == 0:
            self._walk()

    def _walk(self) -> None:
        at = self.candidates.index(self.k)
        if self.k == 0:  # the only way to learn anything again
            at = min(at + 1, len(self.candidates) - 1)
            if self.average < 0:
                self.average = self.candidates[at] - 1.0
            self.k = self.candidates[at]
            return
        start = at
        while at > 0 and self.average <= self._floor(self.candidates[at - 1]):
            at -= 1
        if at == start:
            while at + 1 < len(self.candidates) and self.average > self.candidates[at] - 0.5 + self.up:
                at += 1
        self.k = self.candidates[at]

    def _floor(self, smaller: int) -> float:
        return (0.5 if smaller == 0 else smaller - 0.5) + self.down


TIERS: dict[int, tuple[tuple[int, ...], float]] = {
    1: ((1, 3, 5, 7), -0.25),
    8: ((0, 1, 3), 0.0),
    32: ((0, 1), 0.0),
    64: ((0,), 0.0),
}


@dataclass(slots=True)
class EmaController(OneThreshold):
    """One K for the whole batch, by its size and its recent acceptance."""

    initial: int
    k_max: int
    draft_confidence: float = 0.0
    tiers: dict[int, Tier] = field(init=False)

    name = "ema"

    def __post_init__(self) -> None:
        self.tiers = {}
        for size, (steps, down) in TIERS.items():
            fitting = tuple(k for k in steps if k <= self.k_max) or (0,)
            k = self.initial if self.initial in fitting else fitting[len(fitting) // 2]
            self.tiers[size] = Tier(fitting, down, 0.0, k, k - 1.0)

    def choose(self, views: Sequence[RequestView]) -> list[int]:
        """The K of the batch's tier, cut to each request's limits."""
        k = self._tier(len(views)).k
        return [capped(k, view, self.k_max) for view in views]

    def observe(self, record: RoundRecord) -> None:
        """Feed the batch's tier."""
        mean = sum(outcome.accepted for outcome in record.requests) / record.batch
        self._tier(record.batch).update(mean)

    def forget(self, rid: str) -> None:
        """Nothing is kept per request."""

    def snapshot(self) -> dict[str, Any]:
        """K and average of each tier."""
        return {"controller": self.name, "tiers": {size: (t.k, t.average) for size, t in self.tiers.items()}}

    def _tier(self, batch: int) -> Tier:
        sizes = sorted(self.tiers)
        return self.tiers[sizes[max(0, bisect_right(sizes, batch) - 1)]]
