"""Which drafters pay: levels of a pyramid, and alternatives among several drafters.

Both score a stack by the time it needs per emitted token. With a the chance that the level above accepts a
token of the level below, a pass over w guesses emits E(a, w) = (1 - a^(w+1)) / (1 - a) tokens (Leviathan et
al. 2023, equation 1), so a level whose pass costs c and whose guesses cost r each says a token in

    r' = min over w >= 1 of (w r + c) / E(a, w)

and the same holds for the target on top. Observations are overlaps sum(min(p, q)), the exact chance of
acceptance at a position (ibid., corollary 3.6). They can be taken wherever both laws are known, also for a
drafter whose guess was not used: full feedback, so there is nothing to explore except what was never run.

Decisions depend on observations alone; a change needs a gain of HYSTERESIS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

MAX_WIDTH = 8
HYSTERESIS = 0.02  # least relative gain for a change
DECAY = 0.98  # per observation: about 50 rounds are remembered
PRIOR_WEIGHT = 4.0  # observations that a prior counts for
PRIOR_OVERLAP = 0.6


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


class LevelChoice:
    """Which levels of a pyramid take part. Level n (the number of drafts) is the target.

    costs: ms of a pass of each level, the target last; replaced by what is observed.
    """

    def __init__(self, costs: Sequence[float]) -> None:
        self.levels = len(costs) - 1
        self._cost = [Mean(c) for c in costs]
        self._overlap: dict[tuple[int, int], Mean] = {}
        self._active = tuple(range(self.levels))

    def observe_cost(self, level: int, ms: float) -> None:
        """Take the duration of one pass."""
        self._cost[level].add(ms)

    def observe_overlap(self, lower: int, upper: int, overlap: float) -> None:
        """Take sum(min(p, q)) of two levels at one position, in [0, 1]."""
        self._overlap.setdefault((lower, upper), Mean(self.overlap(lower, upper))).add(overlap)

    def overlap(self, lower: int, upper: int) -> float:
        """Return the estimated overlap; through the levels between while it was never observed."""
        known = self._overlap.get((lower, upper))
        if known:
            return known.value
        product = 1.0
        for i in range(lower, upper):
            step = self._overlap.get((i, i + 1))
            product *= step.value if step else PRIOR_OVERLAP
        return product

    def plan(self, active: Sequence[int]) -> tuple[float, tuple[int, ...]]:
        """Return ms per emitted token with these levels, and the width asked of each by the one above it."""
        if not active:
            return self._cost[-1].value, ()
        rate, widths = self._cost[active[0]].value, []
        for lower, upper in zip(active, [*active[1:], self.levels], strict=True):
            rate, width = per_token(rate, self.overlap(lower, upper), self._cost[upper].value)
            widths.append(width)
        return rate, tuple(widths)

    def choose(self) -> tuple[int, ...]:
        """Return the active levels, () if none pays."""
        subsets = [s for n in range(self.levels + 1) for s in combinations(range(self.levels), n)]
        best = min(subsets, key=lambda s: self.plan(s)[0])
        if self.plan(best)[0] < (1 - HYSTERESIS) * self.plan(self._active)[0]:
            self._active = best
        return self._active


class DrafterChoice:
    """The best of several drafters for each key (a program, say), from full feedback.

    costs: ms per guess of each drafter; target_cost: ms of a verify pass.
    """

    def __init__(self, costs: Mapping[str, float], target_cost: float) -> None:
        self._costs = dict(costs)
        self._target_cost = target_cost
        self._overlap: dict[tuple[str, str], Mean] = {}
        self._chosen: dict[str, str] = {}

    def observe(self, key: str, overlaps: Mapping[str, float]) -> None:
        """Take the overlap with the target of every drafter whose law is known at a position."""
        for name, overlap in overlaps.items():
            self._overlap.setdefault((key, name), Mean(PRIOR_OVERLAP)).add(overlap)

    def rate(self, key: str, name: str) -> float:
        """Return the estimated ms per emitted token with this drafter."""
        known = self._overlap.get((key, name))
        overlap = known.value if known else PRIOR_OVERLAP
        return per_token(self._costs[name], overlap, self._target_cost)[0]

    def choose(self, key: str) -> str:
        """Return the drafter to use; at first the one that is best by its cost."""
        best = min(self._costs, key=lambda name: self.rate(key, name))
        chosen = self._chosen.setdefault(key, best)
        if self.rate(key, best) < (1 - HYSTERESIS) * self.rate(key, chosen):
            self._chosen[key] = chosen = best
        return chosen
