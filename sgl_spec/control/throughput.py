"""The default: per request the K that maximises the batch's expected tokens per millisecond, 0 included.

Acceptance is learnt online (`acceptance`), costs are measured (`cost`), slots compete across requests
(`plan`), a draft that does not pay is left alone but for counted probes (`probe`). Around this, four rules:

- a draft of which nothing is known is tried by few requests and short (`COLD_*`), not gambled on;
- K of a request is kept for `DWELL` rounds and changes for a gain worth having; only a clear loss against
  plain decoding ends drafting at once, and then it stays off for longer (`CALM`);
- what a source offers in this round (a cache hit, a prediction) is used in this round: it is news, not noise;
- plain rounds are measured too, at first and every `REFRESH` rounds, since all gain is against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sgl_spec.control.acceptance import Acceptance, Node, ProgramKey, band
from sgl_spec.control.base import MODEL, RequestRound, RequestView, RoundRecord, capped
from sgl_spec.control.cost import CostModel
from sgl_spec.control.plan import Slots, Value, best, worth
from sgl_spec.control.probe import Account, Prober

DWELL = 10  # rounds that a request keeps its K
CALM = 20  # the same after drafting lost clearly
MARGIN = 0.02  # relative gain that a change must promise, times the share of requests that change
ENTRY = 0.03  # relative gain over plain decoding that drafting must promise
LOSS = 0.05  # relative loss against plain decoding that ends drafting at once
COLD_TRIALS = 6.0  # guesses after which a program's draft is no longer unknown
COLD_K, COLD_REQUESTS = 2, 2
REFRESH = 256  # rounds without a plain one, after which one is run to measure it
NEAR = 1.5  # a plain round at a batch size within this factor will do


@dataclass(slots=True)
class Running:
    """One running request."""

    program: str
    band: int
    k: int = -1  # -1: not decided yet
    since: int = 0  # rounds since K changed
    dwell: int = DWELL
    batch: int = 1  # batch size when K was set
    asked: int = 0
    offers: Sequence[tuple[str, float]] = ()
    exploring: ProgramKey | None = None  # this round's guesses are a probe of that program


@dataclass(slots=True)
class ThroughputController:
    """See the module's text. `initial` only caps K while costs are unknown."""

    k_max: int
    draft_confidence: float | None = None
    probe_share: float = 0.01
    acceptance: Acceptance = field(default_factory=Acceptance)
    cost: CostModel = field(default_factory=CostModel)
    prober: Prober = field(init=False)
    running: dict[str, Running] = field(default_factory=dict)
    reach: dict[ProgramKey, Node] = field(default_factory=dict)
    rounds: int = 0
    plain_rounds: int = 0
    since_plain: int = 0
    changes: int = 0
    plain_batches: set[int] = field(default_factory=set)
    token_ms: float = 0.0  # expected milliseconds per token of the current plan
    probe_ms: float = 0.0  # expected cost of this round's probes
    drafting: int = 0  # requests that draft in this round

    name = "throughput"

    def __post_init__(self) -> None:
        self.prober = Prober(Account(self.probe_share))

    # --- choose -------------------------------------------------------------------------------------------

    def choose(self, views: Sequence[RequestView]) -> list[int]:
        """K per request; see the module's text."""
        self.rounds += 1
        states = [self._state(view) for view in views]
        tops = [capped(self.k_max, view, self.k_max) for view in views]
        self.probe_ms = 0.0
        chosen = [0] * len(views)
        if any(tops) and not self._measure_plain(len(views)):
            slots = [self._slots(*each) for each in zip(views, states, tops, strict=True)]
            chosen = self._decide(views, states, slots)
        for state, view, k in zip(states, views, chosen, strict=True):
            state.asked, state.offers = k, view.offers
        self.drafting = sum(k > len(view.offers) for k, view in zip(chosen, views, strict=True))
        return chosen

    def _state(self, view: RequestView) -> Running:
        state = self.running.get(view.rid)
        if state is None:
            state = self.running[view.rid] = Running(view.program, band(view.temperature))
        state.since += 1
        state.exploring = None
        return state

    def _measure_plain(self, batch: int) -> bool:
        """Whether this round must be plain, because none like it was measured (lately)."""
        if self.since_plain >= REFRESH:
            return True
        return not any(batch <= NEAR * seen and seen <= NEAR * batch for seen in self.plain_batches)

    def _slots(self, view: RequestView, state: Running, top: int) -> Slots:
        """The request's possible guesses with survival and reach."""
        survival: list[float] = []
        reach: list[float] = []
        alive = made = 1.0
        free = min(len(view.offers), top)
        for source, promised in view.offers[:free]:
            node = self.acceptance.request(view.rid, (state.program, state.band, source))
            alive *= min(promised * node.scale(), 0.995)
            survival.append(alive)
            reach.append(1.0)
        if top > free and view.model:
            key = (state.program, state.band, MODEL)
            accepts = self.acceptance.request(view.rid, key).estimates(top - free)
            goes_on = self._reach(key).estimates(top - free)
            for turn in range(top - free):
                made *= goes_on[turn]
                alive *= accepts[turn] * goes_on[turn]
                survival.append(alive)
                reach.append(made)
        return Slots(survival, reach, free, view.pending)

    def _decide(self, views: Sequence[RequestView], states: list[Running], slots: list[Slots]) -> list[int]:
        target, value = best(self.cost, slots)
        batch = len(views)
        plain = Value(float(batch), self.cost.plain_ms(batch))
        if value.rate < (1.0 + ENTRY) * plain.rate and not any(state.k > 0 for state in states):
            target, value = [0] * batch, plain
        chosen = list(target)
        steady = [state.k >= 0 and not view.offers for state, view in zip(states, views, strict=True)]
        for i, state in enumerate(states):
            if steady[i]:
                chosen[i] = min(state.k, len(slots[i].survival))
        moved = [i for i in range(batch) if steady[i] and chosen[i] != target[i]]
        if moved:
            held = worth(self.cost, slots, chosen)
            self._move(states, chosen, target, moved, (held, value, plain))
        self._explore(views, states, slots, chosen)
        final = worth(self.cost, slots, chosen)
        self.token_ms = final.ms / final.tokens if final.tokens else 0.0
        for i, state in enumerate(states):
            if state.k < 0 and state.exploring is None:
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
                margin = (ENTRY if state.k == 0 else MARGIN) * len(moved) / batch
                if (state.since < state.dwell and not resized) or gain <= margin:
                    continue
            chosen[i] = state.k = target[i]
            state.since, state.batch = 0, batch
            state.dwell = CALM if stop else DWELL
            self.changes += 1

    # --- exploring ----------------------------------------------------------------------------------------

    def _explore(
        self, views: Sequence[RequestView], states: list[Running], slots: list[Slots], chosen: list[int]
    ) -> None:
        """Shorten and thin out drafts of unknown quality, and probe drafts that did not pay."""
        plain_ms = self.cost.plain_ms(len(views))
        probed: list[tuple[int, int]] = []
        for key, members in self._by_program(views, states, slots).items():
            node = self.acceptance.program(key)
            unknown = node.seen < COLD_TRIALS
            drafts = [i for i in members if chosen[i] > 0]
            if drafts and not (unknown and node.parent is not None and node.parent.seen < COLD_TRIALS):
                self.prober.works(key)
                continue
            if unknown:
                if not self.prober.account.allows(plain_ms):
                    for i in drafts:
                        chosen[i] = 0
                    continue
                picked = members[:COLD_REQUESTS]
            elif self.prober.due(key, plain_ms):
                picked = [min(members, key=lambda i: slots[i].pending)]
            else:
                continue
            for i in members:
                chosen[i] = 0
            for i in picked:
                states[i].exploring = key
                probed.append((i, min(COLD_K, len(slots[i].survival))))
        if probed:
            before = worth(self.cost, slots, chosen).ms
            for i, k in probed:
                chosen[i] = k
            self.probe_ms = worth(self.cost, slots, chosen).ms - before

    def _by_program(
        self, views: Sequence[RequestView], states: list[Running], slots: list[Slots]
    ) -> dict[ProgramKey, list[int]]:
        """Requests that can draft, by program, band and the source of their first guess."""
        groups: dict[ProgramKey, list[int]] = {}
        for i, (view, state) in enumerate(zip(views, states, strict=True)):
            if slots[i].survival:
                source = view.offers[0][0] if slots[i].free else MODEL
                groups.setdefault((state.program, state.band, source), []).append(i)
        return groups

    def confidence(self, view: RequestView) -> float:
        """The request's own threshold, else the server's, else what one more guess must be worth.

        One more guess costs a share of a draft step and a verified row; it earns a token with the probability
        that it and all before it are accepted. Below cost / (milliseconds per token) it does not pay.
        """
        own = view.options.draft_confidence
        if own is not None:
            return own
        if self.draft_confidence is not None:
            return self.draft_confidence
        if self.token_ms <= 0.0:
            return 0.0
        share = max(self.drafting, 1)
        row = self.cost.verify.theta[2]
        return min(0.9, (self.cost.step_ms(float(share)) / share + row) / self.token_ms)

    # --- observe ------------------------------------------------------------------------------------------

    def observe(self, record: RoundRecord) -> None:
        """Learn acceptance, costs and the outcome of probes."""
        self.cost.observe(record)
        if record.rows == record.batch and record.batch:
            self.plain_rounds += 1
            self.since_plain = 0
            self.plain_batches.add(record.batch)
        else:
            self.since_plain += 1
        gained = 0
        for outcome in record.requests:
            state = self.running.get(outcome.rid)
            if state is None:
                continue
            self._learn(state, outcome)
            if state.exploring is not None:
                gained += outcome.accepted
                self.prober.result(state.exploring, outcome.proposed, outcome.accepted)
        account = self.prober.account
        account.elapsed += record.total_ms
        if self.probe_ms > 0.0:
            worth_ms = gained * self.cost.plain_ms(record.batch) / max(record.batch, 1)
            account.spent += max(self.probe_ms - worth_ms, 0.0)
            self.probe_ms = 0.0

    def _learn(self, state: Running, outcome: RequestRound) -> None:
        """Split the guesses into runs of one source; a run counts if all before it were accepted."""
        sources = outcome.sources or (MODEL,) * outcome.proposed
        at = 0
        for source, run in groupby(sources):
            length = sum(1 for _ in run)
            if outcome.accepted < at:
                break
            key = (state.program, state.band, source)
            offered = [] if source == MODEL else [promised for _, promised in state.offers[at : at + length]]
            if source == MODEL or len(offered) == length:
                self.acceptance.learn(outcome.rid, key, length, min(outcome.accepted - at, length), offered)
            at += length
        drafted = state.asked - len(state.offers)
        if drafted > 0:
            made = max(0, min(outcome.proposed - len(state.offers), drafted))
            self._reach((state.program, state.band, MODEL)).learn(drafted, made, [1.0] * drafted)

    def _reach(self, key: ProgramKey) -> Node:
        node = self.reach.get(key)
        if node is None:
            node = self.reach[key] = Node(0.98, cold=0.995)
        return node

    def forget(self, rid: str) -> None:
        """Drop the request's state; its program keeps what it taught."""
        self.running.pop(rid, None)
        self.acceptance.forget(rid)

    def snapshot(self) -> dict[str, Any]:
        """Counters and estimates, JSON-ready."""
        return {
            "controller": self.name,
            "rounds": self.rounds,
            "plain_rounds": self.plain_rounds,
            "changes": self.changes,
            "probes": self.prober.probes,
            "probe_hits": self.prober.hits,
            "probe_ms": self.prober.account.spent,
            "k": {rid: state.k for rid, state in self.running.items()},
        }
