"""Which levels of a pyramid of draft models pay, for each key (a program, say).

A stack of levels is scored by the time it needs per emitted token. With a the chance that the level above
accepts a token of the level below, a pass over w guesses emits E(a, w) = (1 - a^(w+1)) / (1 - a) tokens
(Leviathan et al. 2023, equation 1), so a level whose pass costs c and whose guesses cost r each says a token in

    r' = min over w >= 1 of (w r + c) / E(a, w)

and the same holds for the target on top. A single level is a stack too, so the best of several draft models is
found the same way. Observations of a are taken wherever one level judged another's guess. Whether to draft at all
is not decided here but by the controller.

Decisions depend on observations alone; a change needs a gain of HYSTERESIS.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

MAX_WIDTH = 8
HYSTERESIS = 0.02  # least relative gain for a change
DECAY = 0.98  # per observation: about 50 rounds are remembered
PRIOR_WEIGHT = 4.0  # observations that a prior counts for
PRIOR_OVERLAP = 0.6
MAX_KEYS = 256  # least recently used keys are forgotten


class Mean:
    """A discounted mean that starts from a prior."""

    __slots__ = ("_sum", "_weight")

    def __init__(self, prior: float, weight: float = PRIOR_WEIGHT) -> None:
        self._sum, self._weight = prior * weight, weight

    def add(self, value: float) -> None:
        """Take one observation."""
        self._sum = DECAY * self._sum + value
        self._weight = DECAY * self._weight + 1

    @property
    def value(self) -> float:
        """The current mean."""
        return self._sum / self._weight


def emitted(a: float, width: int) -> float:
    """Return E(a, width): tokens per pass over `width` guesses, each accepted with chance `a`."""
    return width + 1.0 if a >= 1 else (1 - a ** (width + 1)) / (1 - a)


def per_token(below: float, overlap: float, cost: float, max_width: int = MAX_WIDTH) -> tuple[float, int]:
    """Return (ms per emitted token, best width) of a level over guesses that cost `below` ms each."""
    return min(((w * below + cost) / emitted(overlap, w), w) for w in range(1, max_width + 1))


@dataclass(slots=True)
class _Key:
    """What is known under one key."""

    active: tuple[int, ...]
    overlap: dict[tuple[int, int], Mean] = field(default_factory=dict)


class LevelChoice:
    """Which levels of a pyramid take part. Level n (the number of drafts) is the target.

    costs: ms of a pass of each level, the target last; replaced by what is observed.
    """

    def __init__(self, costs: Sequence[float]) -> None:
        self.levels = len(costs) - 1
        self._cost = [Mean(c) for c in costs]
        self._keys: OrderedDict[str, _Key] = OrderedDict()

    def observe_cost(self, level: int, ms: float) -> None:
        """Take the duration of one pass."""
        self._cost[level].add(ms)

    def observe_overlap(self, key: str, lower: int, upper: int, overlap: float) -> None:
        """Take the chance, or the outcome (0 or 1), of acceptance at one position."""
        known = self._key(key)
        known.overlap.setdefault((lower, upper), Mean(self.overlap(key, lower, upper))).add(overlap)

    def overlap(self, key: str, lower: int, upper: int) -> float:
        """Return the estimated overlap; through the levels between while it was never observed."""
        seen = self._key(key).overlap
        if (lower, upper) in seen:
            return seen[lower, upper].value
        product = 1.0
        for i in range(lower, upper):
            product *= seen[i, i + 1].value if (i, i + 1) in seen else PRIOR_OVERLAP
        return product

    def plan(self, key: str, active: Sequence[int]) -> tuple[float, tuple[int, ...]]:
        """Return ms per emitted token with these levels, and the width asked of each by the one above it."""
        rate, widths = self._cost[active[0]].value, []
        for lower, upper in zip(active, [*active[1:], self.levels], strict=True):
            rate, width = per_token(rate, self.overlap(key, lower, upper), self._cost[upper].value)
            widths.append(width)
        return rate, tuple(widths)

    def choose(self, key: str) -> tuple[int, ...]:
        """Return the active levels, one at least."""
        known = self._key(key)
        subsets = [s for n in range(1, self.levels + 1) for s in combinations(range(self.levels), n)]
        best = min(subsets, key=lambda s: self.plan(key, s)[0])
        if self.plan(key, best)[0] < (1 - HYSTERESIS) * self.plan(key, known.active)[0]:
            known.active = best
        return known.active

    def snapshot(self) -> dict[str, Any]:
        """Return costs [ms] and, per key, active levels and overlaps, JSON-ready."""
        return {
            "pass_ms": [mean.value for mean in self._cost],
            "keys": {
                key: {
                    "active": list(known.active),
                    "overlap": {f"{lower}-{upper}": mean.value for (lower, upper), mean in known.overlap.items()},
                }
                for key, known in self._keys.items()
            },
        }

    def _key(self, key: str) -> _Key:
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = _Key(tuple(range(self.levels)))
            if len(self._keys) > MAX_KEYS:
                self._keys.popitem(last=False)
        self._keys.move_to_end(key)
        return known
