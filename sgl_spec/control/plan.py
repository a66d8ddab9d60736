"""Which slots of a round are worth their cost: maximise the geometric mean of the requests' speeds.

E_i = 1 + sum of survival probabilities s_ij over the K_i slots of request i, T from the cost model. The objective
is the geometric mean of E_i / T: at batch 1 expected tokens per millisecond; in a batch a few requests do not
run ahead while the wider pass slows the many others (their sum could still rise, and everybody waits for the
last one). A slot adds log((E_i + s_ij) / E_i), which falls with j, so the best sets of slots are prefixes of all
slots sorted by what they add: every prefix is priced and the best one taken. That is exact where slots cost
alike; slots that need no draft forward (cache, prediction) are also tried alone, since they may pay where
drafting does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from sgl_spec.control.base import RequestView
from sgl_spec.control.cost import CostModel

AHEAD, TOKENS_PER_ROUND = 32, 2  # rounds over which a draft's reading is spread, at most; tokens of such a round
ENTRY = 0.03  # relative gain over plain decoding that drafting must promise, more in a batch: see `entry`
WORTHLESS = 0.015  # survival under which no slot is looked at


# A slot as `Prices.order` sorts them: minus what it adds, request, turn, the chances that it is made and that a
# forward runs for it, its own milliseconds. Turn 0 is the catch-up, t the t-th step after it; under 0: no forward.
Slot = tuple[float, int, int, float, float, float]


@dataclass(slots=True)
class Slots:
    """The possible guesses of a batch. B requests, P positions."""

    survival: list[list[float]]  # [B][P] P(guess is made and accepted), falling along a row; 0 past the limit
    reach: list[list[float]]  # [B][P] P(guess is made and verified), falling too: under 1 where early stop cuts in
    free: list[int]  # [B] the first so many need no draft forward
    pending: list[float]  # [B] tokens that the draft model must read before its first guess, its share of older ones
    unread: list[float]  # [B] all that the draft model must read before its first guess
    context: list[float]  # [B] thousands of tokens before the next one


@dataclass(slots=True)
class Value:
    """What an allocation is expected to give."""

    tokens: float  # batch size x geometric mean of the requests' expected tokens
    ms: float

    @property
    def rate(self) -> float:
        """Those tokens per millisecond."""
        return self.tokens / self.ms if self.ms > 0.0 else 0.0


class Prices:
    """The cost model at one batch size, with every request's share of a round."""

    def __init__(self, cost: CostModel, slots: Slots) -> None:
        self.cost, self.slots = cost, slots
        self.batch, positions = len(slots.survival), len(slots.survival[0])
        mean = sum(slots.context) / self.batch
        self.plain = cost.plain_ms(self.batch, mean)
        self.verify = cost.verify_curve(self.batch, self.batch * positions + 1, mean)
        self.drafting = cost.overhead_ms(self.batch, drafting=True)
        first, step = cost.catchup_ms(0.0), cost.step_ms(0.0)
        self.per_token, self.per_row = cost.catchup_ms(1.0, mean) - first, cost.step_ms(1.0, mean) - step
        self.fixed = [first, *[step] * (positions - 1)]  # paid once per turn that any request takes
        self.read = [self.per_token * (pending + free) for pending, free in zip(slots.pending, slots.free, strict=True)]
        kilo = cost.row_ms(1.0) - cost.row_ms(0.0)
        self.longer = [kilo * (context - mean) for context in slots.context]  # rows of longer requests cost more
        # The first draft forward always runs; a later one only where the guesses before it were sure enough.
        self.runs = [[1.0, *reach[1:]] for reach in slots.reach]

    def backlog_ms(self, request: int) -> float:
        """What the request's draft must read of older text, beyond the share that counts as this round's."""
        return self.per_token * (self.slots.unread[request] - self.slots.pending[request])

    def order(self) -> list[Slot]:
        """The slots worth a look, sorted by what they add, equal ones by request."""
        slots, per_row, found = self.slots, self.per_row, []
        for request, survival in enumerate(slots.survival):
            reach, runs = slots.reach[request], self.runs[request]
            free, longer = slots.free[request], self.longer[request]
            tokens = before = 0.0
            for at, chance in enumerate(survival):
                if chance <= WORTHLESS:
                    break
                tokens += chance
                after = math.log1p(tokens)
                own = longer * reach[at]
                if at > free:
                    own += per_row * runs[at]
                elif at == free:
                    own += self.read[request]
                found.append((before - after, request, at - free, reach[at], runs[at], own))
                before = after
        found.sort()
        return found

    def best(self, order: Sequence[Slot]) -> tuple[list[int], Value]:
        """The best prefix of sorted slots: K [B] and its value."""
        batch, verify, drafting = self.batch, self.verify, self.drafting
        count, most, least = 0, float(batch), self.plain  # of the best prefix: slots, tokens, milliseconds
        turns = 0
        gain = rows = own = fixed = 0.0
        for at, (less, _, turn, made, runs, price) in enumerate(order, 1):
            gain -= less
            rows += made
            own += price
            # A turn is paid when it is first taken, with that slot's chance to be run; one after the other, since what
            # a request's slots add falls.
            if turn == turns:
                fixed += self.fixed[turn] * runs
                turns += 1
            whole = int(rows)
            below = verify[whole]
            ms = below + (rows - whole) * (verify[whole + 1] - below) + own + fixed + drafting
            tokens = batch * math.exp(gain / batch)
            if 0.0 < most * ms < tokens * least:
                count, most, least = at, tokens, ms
        chosen = [0] * batch
        for slot in order[:count]:
            chosen[slot[1]] += 1
        return chosen, Value(most, least)

    def worth(self, chosen: Sequence[int]) -> Value:
        """The value of a given allocation."""
        if not any(chosen):
            return Value(float(self.batch), self.plain)
        slots = self.slots
        gain = rows = own = 0.0
        paid = [0.0] * len(self.fixed)
        for request, k in enumerate(chosen):
            if not k:
                continue
            made, runs = sum(slots.reach[request][:k]), self.runs[request][slots.free[request] : k]
            gain += math.log1p(sum(slots.survival[request][:k]))
            rows += made
            own += self.longer[request] * made
            if runs:
                own += self.read[request] + self.per_row * sum(runs[1:])
                paid[: len(runs)] = map(max, runs, paid)
        whole = int(rows)
        below = self.verify[whole]
        verify = below + (rows - whole) * (self.verify[whole + 1] - below)
        ms = verify + own + sum(map(mul, self.fixed, paid)) + self.drafting
        return Value(self.batch * math.exp(gain / self.batch), ms)


def best(prices: Prices) -> tuple[list[int], Value]:
    """K [B] with the best rate, and its value."""
    order = prices.order()
    found, value = prices.best(order)
    ready = [slot for slot in order if slot[2] < 0]
    if 0 < len(ready) < len(order):
        cheap, other = prices.best(ready)
        if other.rate > value.rate:
            return cheap, other
    return found, value


def reading(view: RequestView) -> float:
    """Tokens that the draft must read for this round: what it has missed serves all rounds to come."""
    if view.to_come is None:
        return float(view.pending)
    rounds = min(max(view.to_come // TOKENS_PER_ROUND, 1), AHEAD)
    return 1.0 + (view.pending - 1) / rounds


def entry(batch: int) -> float:
    """What drafting must promise: where a pass is wide already, a wrong estimate slows everybody for a few tokens."""
    return ENTRY * (1.0 + math.log2(batch))
