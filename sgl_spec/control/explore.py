"""Which requests draft to learn something: drafts of which nothing is known, and those that did not pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sgl_spec.control.acceptance import Acceptance, ProgramKey
from sgl_spec.control.cost import CostModel
from sgl_spec.control.plan import Prices
from sgl_spec.control.probe import HEAD_START, Prober

COLD_TRIALS = 8.0  # first guesses after which a program's draft is no longer unknown
COLD_K, COLD_REQUESTS = 3, 2  # longest probe, and requests that may probe at once
DOUBT = 1.0  # standard deviations by which a draft must fall short to be hopeless


@dataclass(slots=True)
class Running:
    """One running request."""

    key: ProgramKey
    dwell: int  # rounds that it keeps its K
    k: int = -1  # -1: not decided yet
    waits: bool = False  # nothing is known of its draft, and now is not the time to find out
    since: int = 0  # rounds since K changed
    batch: int = 1  # batch size when K was set
    asked: int = 0
    offered: int = 0  # guesses that were ready without a draft forward
    exploring: bool = False  # this round's guesses are a probe


@dataclass(slots=True)
class Explorer:
    """Thins out and probes; `prober` says when, and what it may cost."""

    prober: Prober
    probe_ms: float = 0.0  # expected cost of this round's probes

    def explore(
        self,
        now: int,
        prices: Prices,
        acceptance: Acceptance,
        states: Sequence[Running],
        tops: Sequence[int],
        chosen: list[int],
    ) -> set[ProgramKey]:
        """Thin out drafts of unknown quality, and probe drafts that did not pay, in round `now`; edits `chosen`.

        Returns the programs of which nothing is known yet.
        """
        self.probe_ms = 0.0
        undecided: set[ProgramKey] = set()
        groups: dict[ProgramKey, list[int]] = {}
        for i, state in enumerate(states):
            if tops[i] and not prices.slots.free[i]:
                groups.setdefault(state.key, []).append(i)
        _, anything = acceptance.all.seen("")
        probing: list[int] = []
        mean = sum(prices.slots.context) / len(states)
        for key, members in groups.items():
            seen = acceptance.asked(key)
            if any(chosen[i] for i in members) and max(seen, anything) >= COLD_TRIALS:
                self.prober.works(key, now)
                continue
            cheapest = sorted(members, key=lambda i: prices.slots.unread[i])
            cheapest = [i for i in cheapest if self._may_read(prices, i)]
            if seen >= COLD_TRIALS or hopeless(prices.cost, acceptance, key, mean, len(states)):
                if not cheapest or not self.prober.due(key, now, prices.plain):
                    continue
                picked = cheapest[:1]
            else:
                undecided.add(key)
                picked = cheapest[:COLD_REQUESTS] if self.prober.account.allows(prices.plain) else []
                for i in members:
                    states[i].waits = not picked
            for i in members:
                chosen[i] = 0
            probing += picked
        if not probing:
            return undecided
        before = prices.worth(chosen).ms
        for i in probing:
            states[i].exploring = True
            chosen[i] = min(_probe_length(prices), tops[i])
        long = sum(prices.backlog_ms(i) for i in probing if self._is_long(prices, i))
        self.prober.reads.spent += long
        self.probe_ms = prices.worth(chosen).ms - before + sum(map(prices.backlog_ms, probing)) - long
        return undecided

    def _is_long(self, prices: Prices, request: int) -> bool:
        """Whether reading what the draft has missed takes longer than the rounds that probes may lose at first."""
        return prices.backlog_ms(request) > HEAD_START * prices.plain

    def _may_read(self, prices: Prices, request: int) -> bool:
        return not self._is_long(prices, request) or self.prober.reads.allows(0.0)

    def settle(
        self,
        now: int,
        shape: tuple[int, float],
        probes: Sequence[tuple[ProgramKey, int, int]],
        cost: CostModel,
        acceptance: Acceptance,
    ) -> bool:
        """Book the cost of round `now`, less what it gained, and set the next pauses; `probes` are (program,
        proposed, accepted) of each request that probed, `shape` the batch size and the mean length in thousands of
        tokens. Returns whether one goes on in the next round.
        """
        batch, context = shape
        plain_ms = cost.plain_ms(batch, context)
        gained = sum(accepted for _, _, accepted in probes) * plain_ms / batch
        self.prober.account.spent += max(self.probe_ms - gained, 0.0)
        going = [
            self.prober.result(key, now, proposed, accepted, hopeless=hopeless(cost, acceptance, key, context, batch))
            for key, proposed, accepted in probes
        ]
        return any(going)


def hopeless(cost: CostModel, acceptance: Acceptance, key: ProgramKey, context: float, batch: int) -> bool:
    """Whether even a lucky reading of the evidence leaves a guess worth less than it costs, if all made one."""
    hits, trials = acceptance.programs.seen(key)[0], acceptance.asked(key)
    rate = (hits + 1.0) / (trials + 2.0)
    lucky = rate + DOUBT * (rate * (1.0 - rate) / (trials + 3.0)) ** 0.5
    guess = cost.catchup_ms(2.0 * batch, context) / batch + cost.row_ms(context)
    return lucky * cost.plain_ms(batch, context) / batch < guess


def _probe_length(prices: Prices) -> int:
    """Guesses with the least cost per trial, if each is right with an even chance."""
    lengths = range(1, min(COLD_K, len(prices.slots.survival[0])) + 1)
    plain, steps = prices.verify[0], list(accumulate(prices.fixed))
    return min(lengths, key=lambda k: (prices.verify[k] - plain + steps[k - 1]) / (2.0 - 2.0 ** (1 - k)))
