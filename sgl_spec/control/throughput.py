"""The default: per request the K that maximises the requests' expected speeds (see `plan`), 0 included.

Acceptance is learnt online (`acceptance`), costs are measured (`cost`), slots compete across requests
(`plan`), a draft that does not pay is left alone but for counted probes (`explore`). Around this, five rules:

- a draft of which nothing is known is tried by few requests and short (`explore`), not gambled on;
- K of a request is kept for `DWELL` rounds and changes for a gain worth having; only a clear loss against
  plain decoding ends drafting at once, and then it stays off for longer (`CALM`);
- what a source offers in this round (a cache hit, a prediction) is used in this round if it can pay for its row: it
  is news, not noise. A request that runs alone takes it in front of what the last plan gave it, as far as it pays: a
  plan in each such round would cost more than it finds;
- a request alone may go on for a few guesses more than planned, as far as the draft is sure: that says more of this
  text than averages do. In a batch, and where the draft does not tell, now and then, to see whether it pays;
- plain rounds are measured too, at first and now and then, since all gain is against them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Any

from sgl_spec.control.acceptance import Acceptance, Evidence, ProgramKey, band
from sgl_spec.control.base import MODEL, RequestView, RoundRecord, capped
from sgl_spec.control.cost import KILO, CostModel
from sgl_spec.control.explore import Explorer, Running
from sgl_spec.control.pace import CALM, DWELL, YOUNG, YOUNG_DWELL, dwell, pace
from sgl_spec.control.plan import Prices, Slots, Value, best, entry, reading
from sgl_spec.control.probe import Account, Prober
from sgl_spec.control.stops import EarlyStop

MARGIN = 0.02  # relative gain that a change must promise, times the share of requests that change
LOSS = 0.05  # relative loss against plain decoding that ends drafting at once
PLAIN_ROUNDS = 2  # plain rounds at a batch size before anything is compared with them: one may be an outlier
DEEPER, DEEPER_BY = 40, 2  # rounds after which drafts of a batch may go on for so many guesses more
SOON, REFRESH = 16, 256  # rounds without a plain one, after which one is run to measure it: at first, later on
NEAR = 1.5  # a plain round at a batch size within this factor will do


@dataclass(slots=True)
class ThroughputController:
    """See the module's text."""

    k_max: int
    draft_confidence: float | None = None
    probe_share: float = 0.01
    cost: CostModel = field(default_factory=CostModel)
    acceptance: Acceptance = field(init=False)
    explorer: Explorer = field(init=False)
    stops: EarlyStop = field(init=False)
    running: dict[str, Running] = field(default_factory=dict)
    rounds: int = 0
    plain_rounds: int = 0
    since_plain: int = 0
    since_plan: int = 0
    pace: int = YOUNG_DWELL  # rounds between plans
    changes: int = 0
    refresh: int = SOON
    plain_batches: dict[int, int] = field(default_factory=dict)  # batch size -> plain rounds
    evidence: list[Evidence] = field(default_factory=list)  # not yet in the tables
    evidence_rounds: int = 0
    plain_only: bool = False  # the last plan says: no drafting pays

    name = "throughput"

    def __post_init__(self) -> None:
        self.acceptance = Acceptance(max(self.k_max, 1))
        self.stops = EarlyStop(self.draft_confidence)
        self.explorer = Explorer(Prober(Account(self.probe_share)))

    def choose(self, views: Sequence[RequestView]) -> list[int]:
        """K per request; see the module's text."""
        self.rounds += 1
        states = [self._state(view) for view in views]
        tops = [capped(self.k_max, view, self.k_max) for view in views]
        chosen = [0] * len(views)
        if any(tops) and not self._measure_plain(len(views)):
            if self._plan_is_due(views, states):
                chosen = self._plan(views, states, tops)
            else:
                wanted = [max(state.k, 0) for state in states]
                if len(views) == 1:
                    wanted = [self.stops.behind_offers(views[0], wanted[0], self.cost)]
                chosen = [min(k, top) for k, top in zip(wanted, tops, strict=True)]
        if self.rounds % DEEPER == 0 or (len(views) == 1 and self.stops.by_confidence(views[0])):
            chosen = [
                min(k + DEEPER_BY, top) if k > len(view.offers) and not state.exploring else k
                for k, view, state, top in zip(chosen, views, states, tops, strict=True)
            ]
        self.stops.drafting = 0
        for state, view, k in zip(states, views, chosen, strict=True):
            state.asked, state.offered = k, min(k, len(view.offers))
            self.stops.drafting += k > state.offered
        return chosen

    def _state(self, view: RequestView) -> Running:
        state = self.running.get(view.rid)
        if state is None:
            state = self.running[view.rid] = Running((view.program, band(view.temperature)), DWELL)
        state.since += 1
        state.exploring = False
        return state

    def _measure_plain(self, batch: int) -> bool:
        """Whether this round must be plain, because none like it was measured (lately)."""
        if self.since_plain >= self.refresh:
            self.refresh = min(2 * self.refresh, REFRESH)
            return True
        near = (count for seen, count in self.plain_batches.items() if batch <= NEAR * seen and seen <= NEAR * batch)
        return sum(near) < PLAIN_ROUNDS

    def _plan_is_due(self, views: Sequence[RequestView], states: list[Running]) -> bool:
        self.since_plan += 1
        new = any(s.k < 0 and not s.waits and not v.offers for s, v in zip(states, views, strict=True))
        if new or self.since_plan >= self.pace:
            return True
        if len(views) == 1 or not any(view.offers for view in views):
            return False
        news = [self.stops.news(view, self.cost) for view in views]
        rows = sum(count for _, count in news)
        if not rows or any(state.k > 0 for state in states):
            return rows > 0
        batch, mean = len(views), KILO * sum(view.context for view in views) / len(views)
        faster = math.prod(tokens for tokens, _ in news) ** (1.0 / batch) / self.cost.slower(batch, rows, mean)
        return faster > 1.0 + entry(batch)  # less starts nothing

    def _slots(self, views: Sequence[RequestView], states: list[Running], tops: list[int]) -> Slots:
        """The requests' possible guesses with survival and reach."""
        accepts, going = self.acceptance.of([view.rid for view in views], [state.key for state in states])
        survival, reach = [], []
        for view, top, of_model, further in zip(views, tops, accepts, going, strict=True):
            ready = [offer.acceptance for offer in view.offers]  # the model's guesses move back behind them
            right, goes_on = ready + of_model, [1.0] * len(ready) + further
            past = [0.0] * (self.acceptance.width - top)
            reach.append([*accumulate(goes_on[:top], mul), *past])
            survival.append([*map(mul, accumulate(right[:top], mul), reach[-1]), *past])
        free = [min(len(view.offers), top) for view, top in zip(views, tops, strict=True)]
        pending, context = [reading(view) for view in views], [KILO * view.context for view in views]
        return Slots(survival, reach, free, pending, [float(view.pending) for view in views], context)

    def _plan(self, views: Sequence[RequestView], states: list[Running], tops: list[int]) -> list[int]:
        self.since_plan = 0
        self._take_in()
        keys = {state.key for state in states}
        young, known = {key: self._young(key) for key in keys}, {key: self.acceptance.known(key) for key in keys}
        self.pace = min(pace(state, young[state.key]) for state in states)
        tops = [
            min(top, len(view.offers) + known[state.key]) for view, state, top in zip(views, states, tops, strict=True)
        ]
        batch = len(views)
        prices = Prices(self.cost, self._slots(views, states, tops))
        target, value = best(prices)
        plain = Value(float(batch), prices.plain)
        if value.rate < (1.0 + entry(batch)) * plain.rate and not any(state.k > 0 for state in states):
            target, value = [0] * batch, plain
        chosen = list(target)
        moved = []
        for i, (state, view) in enumerate(zip(states, views, strict=True)):
            if state.k >= 0 and not view.offers:
                chosen[i] = min(state.k, tops[i])
                if chosen[i] != target[i]:
                    moved.append(i)
        if moved:
            self._move(states, chosen, target, moved, (prices.worth(chosen), value, plain))
        self.plain_only = not any(target)
        undecided = self.explorer.explore(self.rounds, prices, self.acceptance, states, tops, chosen)
        self.stops.planned(prices.worth(chosen))
        for i, (state, view) in enumerate(zip(states, views, strict=True)):
            if state.k < 0 and state.key not in undecided and not view.offers:
                state.k, state.since, state.batch = target[i], 0, batch
        return chosen

    def _move(
        self,
        states: list[Running],
        chosen: list[int],
        target: list[int],
        moved: list[int],
        values: tuple[Value, Value, Value],
    ) -> None:
        """Let requests change K where the rules allow it; edits `chosen` and the states."""
        held, value, plain = values
        batch = len(states)
        gain = value.rate / held.rate - 1.0 if held.rate > 0.0 else 1.0
        losing = held.rate * (1.0 + LOSS) < plain.rate
        for i in moved:
            state = states[i]
            stop = losing and target[i] == 0
            if not stop:
                resized = batch > NEAR * state.batch or state.batch > NEAR * batch
                margin = (entry(batch) if state.k == 0 else MARGIN) * len(moved) / batch
                if (state.since < dwell(state, self._young(state.key)) and not resized) or gain <= margin:
                    continue
            state.k = chosen[i] = target[i]
            state.since, state.batch = 0, batch
            state.dwell = CALM if stop else DWELL
            self.changes += 1

    def _young(self, key: ProgramKey) -> bool:
        return self.acceptance.programs.seen(key)[1] < YOUNG

    def confidence(self, view: RequestView) -> float:
        """See `EarlyStop.keep`."""
        return self.stops.keep(view, self.cost)

    def go_on(self, view: RequestView) -> float:
        """See `EarlyStop.go_on`."""
        return self.stops.go_on(view, self.cost)

    # --- observe ------------------------------------------------------------------------------------------

    def observe(self, record: RoundRecord) -> None:
        """Learn acceptance, costs and the outcome of probes."""
        self.cost.observe(record)
        if record.rows == record.batch and record.batch:
            self.plain_rounds += 1
            self.since_plain = 0
            self.plain_batches[record.batch] = self.plain_batches.get(record.batch, 0) + 1
        else:
            self.since_plain += 1
        self._learn(record)  # also if every draft stopped before its first guess
        self.explorer.prober.passed(record.total_ms)

    def _learn(self, record: RoundRecord) -> None:
        """Take in what became of the draft model's guesses; other sources keep their own books."""
        probes: list[tuple[ProgramKey, int, int]] = []
        for outcome in record.requests:
            state = self.running.get(outcome.rid)
            if state is None or state.asked == 0:
                continue
            before = outcome.proposed - outcome.sources.count(MODEL) if outcome.sources else 0
            if state.asked > state.offered:
                made = outcome.proposed - before
                kept = max(outcome.accepted - before, 0)
                tried = min(kept + 1, made) if outcome.accepted >= before else 0
                if tried:
                    self.stops.trust.learn(outcome.hoped, kept)
                asked = max(state.asked - state.offered, made)
                self.evidence.append(Evidence(outcome.rid, state.key, asked, made, tried, kept))
            if state.exploring:
                probes.append((state.key, outcome.proposed, outcome.accepted))
        self.evidence_rounds += record.rows > record.batch
        if probes:
            self._take_in()
            mean = KILO * record.context / record.batch
            if self.explorer.settle(self.rounds, (record.batch, mean), probes, self.cost, self.acceptance):
                self.pace = 1

    def _take_in(self) -> None:
        """Hand gathered evidence to the tables: before a plan, not every round."""
        self.acceptance.learn(self.evidence, self.evidence_rounds)
        self.evidence.clear()
        self.evidence_rounds = 0

    def forget(self, rid: str) -> None:
        """Drop the request's state; its program keeps what it taught."""
        self.running.pop(rid, None)
        self.acceptance.forget(rid)

    def to_dict(self) -> dict[str, Any]:
        """Costs and acceptance, JSON-ready: what `state_file` keeps."""
        self._take_in()
        return {
            "cost": self.cost.to_dict(),
            "plain_batches": sorted(self.plain_batches),
            "acceptance": self.acceptance.to_dict(),
        }

    def load(self, values: dict[str, Any]) -> None:
        """Take over what `to_dict` wrote; raises as its parts do if it is not that."""
        cost, acceptance = CostModel(), Acceptance(self.acceptance.width)
        cost.load(values["cost"])
        acceptance.load(values["acceptance"])
        batches = {int(batch): PLAIN_ROUNDS for batch in values["plain_batches"]}
        self.cost, self.acceptance, self.plain_batches = cost, acceptance, batches

    def snapshot(self) -> dict[str, Any]:
        """Counters and estimates, JSON-ready."""
        return {
            "controller": self.name,
            "rounds": self.rounds,
            "plain_rounds": self.plain_rounds,
            "changes": self.changes,
            "probes": self.explorer.prober.probes,
            "probe_hits": self.explorer.prober.hits,
            "probe_ms": self.explorer.prober.account.spent,
            "pays": not self.plain_only,
            "k": {rid: state.k for rid, state in self.running.items()},
        }
