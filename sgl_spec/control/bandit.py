"""Arms K in {0, 1, 2, 3, 5, 8, ...}, reward tokens per millisecond of the batch, discounted UCB.

Garivier & Moulines 2011: each arm's mean reward and pulls are discounted so that old rounds fade; the arm
with the highest mean + bonus is pulled. An arm is held for a few rounds, since one round says little. It
knows nothing about positions or costs: kept for comparison with `throughput`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sgl_spec.control.base import OneThreshold, RequestView, RoundRecord, capped

ARMS = (0, 1, 2, 3, 5, 8, 12, 16, 24, 32)
DISCOUNT = 0.98  # per pull
BONUS = 0.15  # of the best mean
HOLD = 5  # rounds per pull


@dataclass(slots=True)
class Arms:
    """The arms for one range of batch sizes (powers of two)."""

    pulls: list[float]
    rewards: list[float]
    current: int = 0
    left: int = HOLD
    tokens: float = 0.0
    ms: float = 0.0

    def observe(self, tokens: float, ms: float) -> None:
        """One round of the current arm; after `HOLD` of them the next arm is chosen."""
        self.tokens += tokens
        self.ms += ms
        self.left -= 1
        if self.left > 0 or self.ms <= 0.0:
            return
        self.pulls = [DISCOUNT * value for value in self.pulls]
        self.rewards = [DISCOUNT * value for value in self.rewards]
        self.pulls[self.current] += 1.0
        self.rewards[self.current] += self.tokens / self.ms
        self.current = self._best()
        self.left, self.tokens, self.ms = HOLD, 0.0, 0.0

    def _best(self) -> int:
        untried = [arm for arm, pull in enumerate(self.pulls) if pull == 0.0]
        if untried:
            return untried[0]
        means = [reward / pull for reward, pull in zip(self.rewards, self.pulls, strict=True)]
        scale = BONUS * max(means)
        total = math.log(1.0 + sum(self.pulls))
        bonus = [scale * math.sqrt(total / pull) for pull in self.pulls]
        scores = [mean + extra for mean, extra in zip(means, bonus, strict=True)]
        return scores.index(max(scores))


@dataclass(slots=True)
class BanditController(OneThreshold):
    """One K for the whole batch."""

    k_max: int
    draft_confidence: float = 0.0
    sizes: dict[int, Arms] = field(default_factory=dict)

    name = "bandit"

    @property
    def arms(self) -> tuple[int, ...]:
        """The K that may be pulled."""
        return tuple(k for k in ARMS if k <= self.k_max)

    def choose(self, views: Sequence[RequestView]) -> list[int]:
        """The current arm of this batch size, cut to each request's limits."""
        k = self.arms[self._arms(len(views)).current]
        return [capped(k, view, self.k_max) for view in views]

    def observe(self, record: RoundRecord) -> None:
        """Reward the current arm of this batch size."""
        tokens = sum(outcome.accepted + 1 for outcome in record.requests)
        self._arms(record.batch).observe(float(tokens), record.total_ms)

    def forget(self, rid: str) -> None:
        """Nothing is kept per request."""

    def snapshot(self) -> dict[str, Any]:
        """The current arm and the pulls of each batch size."""
        return {
            "controller": self.name,
            "arms": {size: (self.arms[arms.current], arms.pulls) for size, arms in self.sizes.items()},
        }

    def _arms(self, batch: int) -> Arms:
        size = 1 << (batch - 1).bit_length()
        arms = self.sizes.get(size)
        if arms is None:
            count = len(self.arms)
            arms = self.sizes[size] = Arms([0.0] * count, [0.0] * count)
        return arms
