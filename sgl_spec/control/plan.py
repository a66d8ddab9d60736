"""Which slots of a round are worth their cost: maximise expected tokens per millisecond over the batch.

E_i = 1 + sum of survival probabilities s_ij over the K_i slots of request i, T from the cost model. Within a
request s_ij falls with j, so the best K sets of equal size are prefixes of all slots sorted by survival:
every prefix is priced and the best one taken. That is exact where slots cost alike; slots that need no draft
forward (cache, prediction) are also tried alone, since they may pay where drafting does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgl_spec.control.cost import CostModel

WORTHLESS = 0.015  # survival under which no slot is looked at


@dataclass(slots=True)
class Slots:
    """One request's possible guesses."""

    survival: list[float]  # P(guess j is made and accepted), falling
    reach: list[float]  # P(guess j is made): under 1 where early stop cuts in; verified whether right or not
    free: int  # the first so many need no draft forward
    pending: int  # tokens that the draft model must read before its first guess


@dataclass(slots=True)
class Value:
    """What an allocation is expected to give."""

    tokens: float
    ms: float

    @property
    def rate(self) -> float:
        """Expected tokens per millisecond."""
        return self.tokens / self.ms if self.ms > 0.0 else 0.0


class Meter:
    """Adds slots one by one and prices the round so far."""

    def __init__(self, cost: CostModel, batch: int, most: int) -> None:
        self.cost = cost
        self.tokens = float(batch)
        self.rows = 0.0
        self.read = 0.0  # catch-up tokens
        self.depth: list[float] = []  # rows of each draft step after the catch-up
        self.verify = [cost.verify_ms(batch, extra) for extra in range(most + 1)]
        self.plain = cost.overhead_ms(batch, drafting=False)
        self.drafting = cost.overhead_ms(batch, drafting=True)
        self.first, self.per_token = cost.catchup_ms(0.0), cost.catchup_ms(1.0) - cost.catchup_ms(0.0)
        self.step, self.per_row = cost.step_ms(0.0), cost.step_ms(1.0) - cost.step_ms(0.0)
        self.draft_ms = 0.0

    def add(self, slots: Slots, j: int) -> None:
        """Take guess j (from 0) of a request; its guesses before j are in already."""
        self.tokens += slots.survival[j]
        reach = slots.reach[j]
        self.rows += reach
        turn = j - slots.free
        if turn < 0:
            return
        if turn == 0:
            if self.read == 0.0:
                self.draft_ms += self.first
            read = slots.pending + slots.free
            self.read += read
            self.draft_ms += self.per_token * read
            return
        depth = self.depth
        if len(depth) < turn:
            depth.append(0.0)
        # A step runs if any request gets there: its fixed part is paid with the likeliest one's probability.
        self.draft_ms += self.step * max(reach - depth[turn - 1], 0.0) + self.per_row * reach
        depth[turn - 1] = max(depth[turn - 1], reach)

    @property
    def ms(self) -> float:
        """Expected milliseconds of the round so far."""
        whole = int(self.rows)
        base = self.verify[whole]
        if self.rows > whole:
            base += (self.verify[whole + 1] - base) * (self.rows - whole)
        return base + self.draft_ms + (self.drafting if self.rows > 0.0 else self.plain)


def best(cost: CostModel, requests: Sequence[Slots]) -> tuple[list[int], Value]:
    """K per request that maximises expected tokens per millisecond, and its value."""
    found, value = _best_prefix(cost, requests, lambda slots: len(slots.survival))
    if any(slots.free for slots in requests) and any(len(s.survival) > s.free for s in requests):
        cheap, other = _best_prefix(cost, requests, lambda slots: min(slots.free, len(slots.survival)))
        if other.rate > value.rate:
            return cheap, other
    return found, value


def worth(cost: CostModel, requests: Sequence[Slots], chosen: Sequence[int]) -> Value:
    """The value of a given allocation."""
    meter = Meter(cost, len(requests), sum(chosen) + 1)
    for slots, k in zip(requests, chosen, strict=True):
        for j in range(min(k, len(slots.survival))):
            meter.add(slots, j)
    return Value(meter.tokens, meter.ms)


def _best_prefix(
    cost: CostModel, requests: Sequence[Slots], width: Callable[[Slots], int]
) -> tuple[list[int], Value]:
    order = sorted(
        (-slots.survival[j], j, i)
        for i, slots in enumerate(requests)
        for j in range(width(slots))
        if slots.survival[j] > WORTHLESS
    )
    meter = Meter(cost, len(requests), len(order) + 1)
    k = [0] * len(requests)
    top = Value(meter.tokens, meter.ms)
    top_rate, best_at = top.rate, 0
    for at, (_, j, i) in enumerate(order, start=1):
        meter.add(requests[i], j)
        ms = meter.ms
        if meter.tokens > top_rate * ms:
            top, best_at = Value(meter.tokens, ms), at
            top_rate = top.rate
    for _, _, i in order[:best_at]:
        k[i] += 1
    return k, top
