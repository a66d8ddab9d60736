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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sgl_spec.control.acceptance import Floats, Ints
from sgl_spec.control.base import RequestView
from sgl_spec.control.cost import CostModel

AHEAD, TOKENS_PER_ROUND = 32, 2  # rounds over which a draft's reading is spread, at most; tokens of such a round
ENTRY = 0.03  # relative gain over plain decoding that drafting must promise, more in a batch: see `entry`
WORTHLESS = 0.015  # survival under which no slot is looked at


@dataclass(slots=True)
class Slots:
    """The possible guesses of a batch. B requests, P positions."""

    survival: Floats  # [B, P] P(guess is made and accepted), falling along a row; 0 past the limit
    reach: Floats  # [B, P] P(guess is made): under 1 where early stop cuts in; it is verified right or wrong
    free: Ints  # [B] the first so many need no draft forward
    pending: Floats  # [B] tokens that the draft model must read before its first guess, its share of older ones
    unread: Floats  # [B] all that the draft model must read before its first guess
    context: Floats  # [B] thousands of tokens before the next one


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
    """The cost model at one batch size, with every slot's share of a round."""

    def __init__(self, cost: CostModel, slots: Slots) -> None:
        batch, positions = slots.survival.shape
        self.cost, self.slots = cost, slots
        self.batch = batch
        self.gain = np.diff(np.log1p(slots.survival.cumsum(axis=1)), axis=1, prepend=0.0)
        mean = float(slots.context.mean())
        self.plain = cost.plain_ms(batch, mean)
        self.verify = cost.verify_curve(batch, batch * positions, mean)
        self.drafting = cost.overhead_ms(batch, drafting=True)
        first, step = cost.catchup_ms(0.0), cost.step_ms(0.0)
        per_token, per_row = cost.catchup_ms(1.0, mean) - first, cost.step_ms(1.0, mean) - step
        columns = np.arange(positions)
        turn = columns - slots.free[:, None]  # 0: the catch-up yields it; t: the t-th step after it
        self.turn = np.maximum(turn, -1)
        # The first draft forward always runs; a later one only where the guesses before it were sure enough.
        self.runs = np.hstack([np.ones((batch, 1)), slots.reach[:, 1:]])
        self.fixed = np.full(positions, step)  # paid once per turn that any request takes
        self.fixed[0] = first
        self.per_token = per_token
        read = per_token * (slots.pending + slots.free)[:, None]
        self.own = np.where(turn < 0, 0.0, np.where(turn == 0, read, per_row * self.runs))
        if batch > 1:  # rows of longer requests cost more than the mean
            self.own += (cost.row_ms(1.0) - cost.row_ms(0.0)) * (slots.context - mean)[:, None] * slots.reach

    def ms(self, rows: Floats, own: Floats, fixed: Floats) -> Floats:
        """Milliseconds of rounds with so many extra rows, and so much drafting."""
        whole = np.interp(rows, np.arange(len(self.verify)), self.verify) + own + fixed + self.drafting
        return np.where(rows > 0.0, whole, self.plain)

    def backlog_ms(self, request: int) -> float:
        """What the request's draft must read of older text, beyond the share that counts as this round's."""
        return self.per_token * float(self.slots.unread[request] - self.slots.pending[request])

    def best(self, allowed: NDArray[np.bool_]) -> tuple[Ints, Value]:
        """The best prefix of the allowed slots, sorted by what they add: K [B] and its value."""
        slots, batch = self.slots, self.batch
        flat = np.flatnonzero(allowed)
        order = flat[np.argsort(-self.gain.ravel()[flat], kind="stable")]
        chosen = np.zeros(batch, dtype=np.int64)
        plain = Value(float(batch), self.plain)
        if not len(order):
            return chosen, plain
        reach = slots.reach.ravel()[order]
        runs = self.runs.ravel()[order]
        fixed = np.zeros(len(order))
        firsts: dict[int, int] = {}
        for at, turn in enumerate(self.turn.ravel()[order].tolist()):
            firsts.setdefault(turn, at)
        for turn, at in firsts.items():  # a turn is paid when it is first taken, with that slot's chance to be run
            if turn >= 0:
                fixed[at] = self.fixed[turn] * runs[at]
        tokens = batch * np.exp(self.gain.ravel()[order].cumsum() / batch)
        ms = self.ms(reach.cumsum(), self.own.ravel()[order].cumsum(), fixed.cumsum())
        rate = tokens / ms
        top = int(rate.argmax())
        if rate[top] <= plain.rate:
            return chosen, plain
        chosen += np.bincount(order[: top + 1] // slots.survival.shape[1], minlength=batch)
        return chosen, Value(float(tokens[top]), float(ms[top]))

    def worth(self, chosen: Ints) -> Value:
        """The value of a given allocation."""
        slots = self.slots
        taken = np.arange(slots.survival.shape[1]) < chosen[:, None]
        rows = np.array((slots.reach * taken).sum())
        paid = np.zeros(len(self.fixed))
        np.maximum.at(paid, np.maximum(self.turn, 0), np.where(taken & (self.turn >= 0), self.runs, 0.0))
        ms = self.ms(rows, (self.own * taken).sum(), (self.fixed * paid).sum())
        return Value(self.batch * math.exp(float((self.gain * taken).sum()) / self.batch), float(ms))


def best(prices: Prices) -> tuple[Ints, Value]:
    """K [B] with the best rate, and its value."""
    slots = prices.slots
    useful = slots.survival > WORTHLESS
    found, value = prices.best(useful)
    free = prices.turn < 0
    if bool((useful & free).any()) and bool((useful & ~free).any()):
        cheap, other = prices.best(useful & free)
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
