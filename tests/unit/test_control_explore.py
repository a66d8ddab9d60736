"""Early stops, trust in a draft's confidence, and who probes: by hand, number for number."""

from types import SimpleNamespace
from typing import Any

import pytest

from sgl_spec.config import RequestOptions
from sgl_spec.control import explore
from sgl_spec.control.acceptance import MAX_PROGRAMS
from sgl_spec.control.base import Offer, RequestView
from sgl_spec.control.cost import CostModel
from sgl_spec.control.explore import COLD_TRIALS, DOUBT, Explorer, Running, hopeless
from sgl_spec.control.probe import HEAD_START, SHORTEST, Account, Prober
from sgl_spec.control.stops import LEAST_SURE, EarlyStop
from sgl_spec.control.trust import KEEP, LEAST, MOST, PRIOR, Trust

VIEW = RequestView("r", 8)
OWN = RequestView("r", 8, options=RequestOptions(draft_confidence=0.7))
A, B, C, D = ("a", 0), ("b", 0), ("c", 0), ("d", 0)


def costs(row: float = 0.06, step: tuple[float, float] = (0.3, 0.1), kilo: float = 0.0) -> CostModel:
    """Milliseconds: `row` of the target's pass, `step` (constant, per request) of a draft forward; `kilo` of either
    and of a request for each thousand tokens of context.
    """
    cost = CostModel()
    cost.verify.theta, cost.draft.theta = [0.8, 0.2, row, 0.01, kilo, kilo], [*step, kilo]
    cost.verify.count = cost.draft.count = cost.catchup.count = cost.overhead.count = 1
    cost.catchup.theta, cost.overhead.theta = [0.05, 0.01, kilo], [0.0, 0.0, 0.0]
    return cost


def test_thresholds_by_hand() -> None:
    stop = EarlyStop(None, token_ms=0.8, drafting=0)
    assert stop.row_worth(VIEW, costs()) == pytest.approx(0.06 / 0.8)
    assert stop.keep(VIEW, costs()) == pytest.approx(0.06 / 0.8)
    assert stop.go_on(VIEW, costs(step=(0.1, 0.02))) == pytest.approx((0.06 / 0.8 + 0.12 / 0.8) / 0.5)
    stop.drafting = 4  # a step is shared
    assert stop.go_on(VIEW, costs()) == pytest.approx((0.06 / 0.8 + (0.3 + 4 * 0.1) / 4 / 0.8) / 0.5)
    stop.trust = Trust(promised=4.0, kept=12.0)
    assert stop.trust.factor == 2.0
    assert stop.keep(VIEW, costs()) == pytest.approx(0.06 / 0.8 / 2.0)
    assert stop.go_on(VIEW, costs(row=9.0)) == LEAST_SURE == stop.keep(VIEW, costs(row=9.0))


def test_thresholds_rise_with_the_context() -> None:
    stop, longer = EarlyStop(None, token_ms=0.8), costs(step=(0.05, 0.02), kilo=0.01)
    view = RequestView("r", 8, context=3000)
    assert stop.keep(view, longer) == pytest.approx((0.06 + 0.03) / 0.8)
    assert stop.go_on(view, longer) == pytest.approx((0.06 + 0.03 + 0.05 + 0.02 + 0.03) / 0.8 / 0.5)
    ready = [Offer("cache", 0.1)]
    assert stop.news(RequestView("r", 8, offers=ready), longer) == (1.1, 1)
    assert stop.news(RequestView("r", 8, offers=ready, context=3000), longer) == (1.0, 0)
    assert stop.news(RequestView("r", 8), longer) == (1.0, 0)


def test_before_any_plan_nothing_stops() -> None:
    stop = EarlyStop(None)
    assert (stop.row_worth(VIEW, costs()), stop.keep(VIEW, costs()), stop.go_on(VIEW, costs())) == (0.0, 0.0, 0.0)


def test_a_given_threshold_goes_before_costs_and_the_requests_before_the_servers() -> None:
    for token_ms in (0.0, 0.8):
        stop = EarlyStop(0.4, token_ms=token_ms)
        assert (stop.keep(VIEW, costs()), stop.go_on(VIEW, costs())) == (0.4, 0.4)
        assert (stop.keep(OWN, costs()), stop.go_on(OWN, costs())) == (0.7, 0.7)


def test_trust_by_hand() -> None:
    trust = Trust()
    assert trust.factor == 1.0
    trust.learn(2.0, 3)
    trust.learn(0.5, 1)
    assert trust.promised == pytest.approx(KEEP * 2.0 + 0.5)
    assert trust.kept == pytest.approx(KEEP * 3.0 + 1.0)
    assert trust.factor == pytest.approx((trust.kept + PRIOR) / (trust.promised + PRIOR))
    before = trust.kept
    trust.learn(0.0, 5)  # not told what was promised: nothing is learnt, and nothing fades
    assert trust.kept == before
    assert Trust(promised=1000.0).factor == LEAST
    assert Trust(kept=1000.0).factor == MOST


def known(hits: dict[Any, float], trials: dict[Any, float], anything: float = 0.0) -> Any:
    """What acceptance says: hits and first guesses per program, and first guesses of all programs."""
    return SimpleNamespace(
        all=SimpleNamespace(seen=lambda key: (0.0, anything if key == "" else 0.0)),
        programs=SimpleNamespace(seen=lambda key: (hits.get(key, 0.0), trials.get(key, 0.0))),
        asked=lambda key: trials.get(key, 0.0),
    )


def test_hopeless_by_hand() -> None:
    batch = 2
    guess = (0.05 + 0.01 * 4.0) / 2 + 0.1  # catch-up of two tokens each, shared, and a row of the target's pass
    rate = (1.0 + 1.0) / (12.0 + 2.0)
    lucky = rate + DOUBT * (rate * (1 - rate) / 15.0) ** 0.5
    edge = guess * batch / lucky  # the price of a plain round at which it is neither
    seen, cost = known({A: 1.0}, {A: 12.0}), costs(row=0.1)
    for share, lost in ((0.999, True), (1.001, False)):
        cost.verify.theta[0] = edge * share - 0.4
        assert hopeless(cost, seen, A, 0.0, batch) is lost
    cost.verify.theta[4] = -0.001 * edge  # what a thousand tokens of context change
    assert hopeless(cost, seen, A, 2.0, batch)
    plain = costs(row=0.1)
    assert not hopeless(plain, known({A: 12.0}, {A: 12.0}), A, 0.0, batch)
    assert hopeless(plain, known({}, {A: 300.0}), A, 0.0, batch)
    for line, part in ((plain.verify, 5), (plain.catchup, 2)):  # a row, or the catch-up, of a long context
        line.theta[part] = 1.0
        assert hopeless(plain, known({A: 12.0}, {A: 12.0}), A, 3.0, batch)
        line.theta[part] = 0.0


def prices(
    cost: CostModel, pending: list[int], *, free: list[int] | None = None, backlog: dict[int, float] | None = None
) -> Any:
    """A round of requests whose guesses cost 0.5 ms each, and a table of costs in which 2 guesses are cheapest."""
    plain = 1.0
    slots = SimpleNamespace(
        free=free or [0] * len(pending),
        pending=pending,
        unread=pending,
        survival=[[0.0] * 8] * len(pending),
        context=[0.0] * len(pending),
    )
    return SimpleNamespace(
        cost=cost,
        plain=plain,
        slots=slots,
        verify=[1.0, 1.1, 1.2, 1.9],
        fixed=[0.4, 0.1, 0.1],
        worth=lambda chosen: SimpleNamespace(ms=plain + 0.5 * sum(chosen)),
        backlog_ms=lambda i: (backlog or {}).get(i, 0.0),
    )


def explorer(elapsed: float = 1e6) -> Explorer:
    return Explorer(Prober(Account(0.01, elapsed=elapsed)))


def test_two_requests_of_an_unknown_draft_probe_the_cheapest_first() -> None:
    states = [Running(A, 10) for _ in range(4)]
    chosen = [5, 5, 5, 5]
    one = explorer()
    assert one.explore(0, prices(costs(), [9, 2, 7, 3]), known({}, {}), states, [8, 8, 8, 8], chosen) == {A}
    assert chosen == [0, 2, 0, 2]  # the length with the least cost per trial; the others wait
    assert [state.exploring for state in states] == [False, True, False, True]
    assert one.probe_ms == pytest.approx(0.5 * 4)
    chosen[:] = [5] * 4
    assert one.explore(0, prices(costs(), [9, 2, 7, 3]), known({}, {}), states, [8, 1, 8, 8], chosen) == {A}
    assert chosen == [0, 1, 0, 2]  # no longer than what the request may still have


def test_without_money_an_unknown_draft_waits() -> None:
    one = explorer(elapsed=0.0)
    one.prober.account.spent = HEAD_START * 1.0
    states, chosen = [Running(A, 10)], [5]
    assert one.explore(0, prices(costs(), [1]), known({}, {}), states, [8], chosen) == {A}
    assert chosen == [0]
    assert (states[0].exploring, one.probe_ms) == (False, 0.0)


def test_a_known_draft_that_pays_is_left_alone_and_one_that_does_not_is_probed_when_due() -> None:
    seen = known({A: 9.0, B: 1.0}, {A: COLD_TRIALS, B: COLD_TRIALS}, anything=2 * COLD_TRIALS)
    states = [Running(A, 10), Running(B, 10), Running(B, 10), Running(C, 10)]
    chosen = [4, 0, 0, 3]
    one, tops = explorer(), [8, 8, 8, 8]
    made = prices(costs(), [1, 6, 5, 1])
    one.prober.works(B, 0)
    assert one.explore(SHORTEST - 1, made, seen, states, tops, chosen) == set()
    assert chosen == [4, 0, 0, 3]  # C is new, but drafts pay here, so it may draft as planned
    assert one.probe_ms == 0.0
    assert one.explore(SHORTEST, made, seen, states, tops, chosen) == set()
    assert chosen == [4, 0, 2, 3]  # one request, the one with least to read
    assert one.probe_ms == pytest.approx(1.0)
    assert one.prober.pause(A).last == SHORTEST


def test_each_program_is_judged_by_its_own_evidence() -> None:
    """A failed lately; B failed long ago; nothing is known of C; D is not known well and cannot pay any more."""
    seen = known({A: 1.0, B: 1.0}, {A: COLD_TRIALS, B: COLD_TRIALS, D: COLD_TRIALS - 1})
    states, chosen = [Running(key, 10) for key in (A, B, C, D)], [0, 0, 5, 5]
    one = explorer()
    one.prober.works(A, 100)
    assert one.explore(110, prices(costs(), [1, 1, 1, 1]), seen, states, [8, 8, 8, 8], chosen) == {C}
    assert chosen == [0, 2, 2, 2]
    assert [state.exploring for state in states] == [False, True, True, True]


def test_what_is_known_of_all_programs_lets_a_new_one_draft_at_once() -> None:
    for anything, expected in ((COLD_TRIALS, [5]), (COLD_TRIALS - 0.1, [2])):
        states, chosen = [Running(C, 10)], [5]
        explorer().explore(0, prices(costs(), [1]), known({}, {}, anything), states, [8], chosen)
        assert chosen == expected


def test_requests_without_a_draft_to_ask_do_not_probe() -> None:
    states = [Running(A, 10), Running(A, 10), Running(A, 10)]
    chosen = [0, 3, 0]
    made = prices(costs(), [1, 1, 1], free=[0, 3, 0])
    assert explorer().explore(0, made, known({}, {}), states, [0, 8, 8], chosen) == {A}
    assert chosen == [0, 3, 2]  # no room; guesses that were ready; the only one that can


def test_drafts_are_judged_at_the_mean_length_of_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(explore, "hopeless", lambda cost, seen, *rest: bool(asked.append(rest)))
    made = prices(costs(), [1, 1])
    made.slots.context = [3.0, 1.0]
    explorer().explore(0, made, known({}, {}), [Running(A, 10), Running(B, 10)], [8, 8], [0, 0])
    assert asked == [(A, 2.0, 2), (B, 2.0, 2)]


@pytest.mark.parametrize(("backlog", "expected"), [(7.9, [2]), (8.1, [0])])
def test_what_is_long_to_read_is_so_by_plain_rounds(backlog: float, expected: list[int]) -> None:
    one, chosen, made = explorer(elapsed=0.0), [0], prices(costs(), [900], backlog={0: backlog})
    one.prober.reads.spent, made.plain = 1.0, 8.0 / HEAD_START
    one.explore(0, made, known({}, {}), [Running(A, 10)], [8], chosen)
    assert chosen == expected


def test_the_cheapest_length_is_at_most_the_longest_probe_and_what_there_is() -> None:
    states, chosen = [Running(A, 10)], [0]
    made = prices(costs(), [1])
    made.verify = [1.0, 1.01, 1.02, 1.03, 1.04]
    made.fixed = [0.5, 0.01, 0.01, 0.01]
    explorer().explore(0, made, known({}, {}), states, [8], chosen)
    assert chosen == [3]
    made.verify, made.fixed = [1.0, 1.5, 1.55, 1.6], [0.2, 0.1, 0.1]
    explorer().explore(0, made, known({}, {}), states, [8], chosen)
    assert chosen == [2]  # 0.7 a trial alone, 0.85 / 1.5 with a second guess, 1.0 / 1.75 with a third
    made.verify, made.fixed = [1.0, 1.1, 1.2, 1.9], [0.22, 0.1, 0.1]
    explorer().explore(0, made, known({}, {}), states, [8], chosen)
    assert chosen == [1]  # 0.32 a trial alone, 0.52 / 1.5 with a second guess
    made.verify = [1.0, 1.01, 1.02, 1.03, 1.04]
    made.fixed = [0.5, 0.01, 0.01, 0.01]
    made.slots.survival = [[0.0, 0.0]]
    explorer().explore(0, made, known({}, {}), states, [8], chosen)
    assert chosen == [2]


def test_what_a_probe_cost_is_booked_less_what_it_gained() -> None:
    cost = costs()
    one = explorer()
    one.probe_ms = 3.0
    plain = cost.plain_ms(4)
    assert plain == pytest.approx(0.8 + 4 * 0.2)
    seen = known({A: 9.0}, {A: 12.0, B: 300.0})
    going = one.settle(50, (4, 0.0), [(A, 3, 2), (B, 3, 1)], cost, seen)
    assert one.prober.account.spent == pytest.approx(3.0 - 3 * plain / 4)
    assert going  # A's goes on
    assert one.prober.pause(A).last == one.prober.pause(B).last == 50
    assert (one.prober.pause(A).streak, one.prober.pause(B).streak) == (1, 0)
    assert one.prober.pause(B).wait == 2 * SHORTEST
    one.probe_ms = 0.1
    before = one.prober.account.spent
    assert not one.settle(51, (4, 0.0), [(B, 3, 2)], cost, seen)
    assert one.prober.account.spent == before  # a gain is nobody's credit
    one.probe_ms, cost.verify.theta[4] = 9.0, 0.1
    one.settle(52, (4, 2.0), [(B, 3, 1)], cost, seen)
    assert one.prober.account.spent == pytest.approx(before + 9.0 - (plain + 4 * 2.0 * 0.1) / 4)


def test_a_probe_of_one_right_guess_goes_on() -> None:
    assert Prober(Account(0.01)).result(A, 5, 1, 1, hopeless=True)


def test_pauses_are_kept_of_so_many_programs() -> None:
    prober = Prober(Account(0.01))
    for i in range(MAX_PROGRAMS):
        prober.pause(("p", i)).wait = i
    assert (len(prober.pauses), prober.pause(("p", 0)).wait) == (MAX_PROGRAMS, 0)
    prober.pause(A)
    assert len(prober.pauses) == MAX_PROGRAMS
    assert ("p", 1) not in prober.pauses  # the one asked for longest ago
    assert ("p", 0) in prober.pauses
