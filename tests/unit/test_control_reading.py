"""A draft must read what it has missed before its first guess: who pays for that, and when it is asked at all."""

import pytest

from sgl_spec.control.base import Offer, RequestRound, RoundRecord
from sgl_spec.control.explore import COLD_TRIALS, Running
from sgl_spec.control.plan import Prices, Slots
from sgl_spec.control.probe import SHORTEST, Account
from tests.unit.test_control_explore import A, costs, explorer, known, prices
from tests.unit.test_control_reference import model_with_costs
from tests.unit.test_control_throughput import controller, play, view


def test_a_long_prompt_is_read_for_a_probe_once_and_then_as_the_share_of_time_allows() -> None:
    one, states, chosen = explorer(elapsed=0.0), [Running(A, 10), Running(A, 10)], [5, 5]
    made = prices(costs(), [900, 800], backlog={0: 40.0, 1: 30.0})
    assert one.explore(0, made, known({}, {}), states, [8, 8], chosen) == {A}
    assert chosen == [2, 2]  # the first reading is free, and both are asked at once
    assert (one.prober.reads.spent, one.probe_ms) == (pytest.approx(70.0), pytest.approx(2.0))
    one.prober.passed(27_999.0)
    assert one.explore(1, made, known({}, {}), states, [8, 8], chosen) == {A}
    assert chosen == [0, 0]
    assert [state.waits for state in states] == [True, True]  # no plan is needed to find that out again
    made.backlog_ms = lambda i: [4.1, 4.0][i]  # both have read most of it; more than four plain rounds is long
    assert one.explore(2, made, known({}, {}), states, [8, 8], chosen) == {A}
    assert chosen == [0, 2]
    assert [state.waits for state in states] == [False, False]
    assert (one.prober.reads.spent, one.probe_ms) == (pytest.approx(70.0), pytest.approx(1.0 + 4.0))
    one.prober.passed(2.0)
    assert one.prober.account.elapsed == one.prober.reads.elapsed == 28_001.0
    made.backlog_ms = lambda i: 40.0
    assert one.explore(3, made, known({}, {}), states, [8, 8], chosen) == {A}
    assert chosen == [2, 2]


def test_a_draft_that_did_not_pay_reads_no_long_prompt_to_be_probed() -> None:
    seen, one = known({A: 1.0}, {A: COLD_TRIALS}), explorer(elapsed=100.0)
    one.prober.reads.spent = 1.0
    states, chosen = [Running(A, 10), Running(A, 10)], [0, 0]
    assert (
        one.explore(SHORTEST, prices(costs(), [900, 950], backlog={0: 40.0, 1: 40.0}), seen, states, [8, 8], chosen)
        == set()
    )
    assert chosen == [0, 0]
    assert (
        one.explore(SHORTEST, prices(costs(), [900, 950], backlog={0: 40.0, 1: 1.0}), seen, states, [8, 8], chosen)
        == set()
    )
    assert chosen == [0, 2]


def test_no_share_no_probe() -> None:
    assert not Account(0.0).allows(1.0)
    assert Account(0.01).allows(0.0)
    assert not Account(0.01, elapsed=100.0, spent=1.0).allows(0.0)


def test_ready_guesses_of_a_first_plan_are_not_the_models():
    """A prediction was there when the request was first planned; where it ends, the draft has all the text to read."""
    policy = controller()
    play(policy, [view("a")], lambda rid, k: 1, 60)  # a draft that pays, if it has not much to read
    sure = [Offer("prediction", 0.95)] * 6
    assert play(
        policy, [view("b", offers=sure, pending=20_000)], lambda rid, k: k, sources=lambda v, k: ["prediction"] * k
    ) == [6]
    for _ in range(6):
        assert play(policy, [view("b", pending=20_000, to_come=100)], lambda rid, k: k) == [0]
    assert play(policy, [view("c", pending=2, to_come=100)], lambda rid, k: k) >= [1]


def test_requests_with_long_prompts_do_not_pay_for_reading_them_one_by_one():
    """Forty requests of 30 tokens with a useless draft: to ask it at all takes as long as thirty rounds."""
    policy, readings = controller(), 0
    for at in range(40):
        unread = 2000
        for left in range(30, 0, -1):
            chosen = policy.choose([view(f"{at}", left, pending=unread, to_come=left + 1)])[0]
            read, catchup = (unread, 0.3 * unread + 3.0) if chosen else (0, 0.0)
            unread = 1 if chosen else unread + 1
            readings += read > 1000
            outcome = [RequestRound(f"{at}", chosen, 0)]
            policy.observe(
                RoundRecord(
                    outcome, 1 + chosen, 20.0 + chosen, 21.0 + chosen + catchup, catchup_ms=catchup, catchup_tokens=read
                )
            )
        policy.forget(f"{at}")
    assert 1 <= readings <= 2


def test_what_a_draft_has_missed_counts_apart_from_this_rounds_share():
    model = model_with_costs()
    slots = Slots([[1.0, 1.0]], [[1.0, 1.0]], [0], [3.0], [43.0], [2.0])
    assert Prices(model, slots).backlog_ms(0) == pytest.approx(
        40 * (model.catchup_ms(1.0, 2.0) - model.catchup_ms(0.0))
    )


@pytest.mark.parametrize(
    ("requests", "told", "own", "more"), [(1, 0.6, None, 2), (1, 0.0, None, 0), (1, 0.6, 0.2, 0), (2, 0.6, None, 0)]
)
def test_a_request_alone_goes_on_as_far_as_its_draft_is_sure(requests, told, own, more):
    """Beyond the plan, where early stop decides: the draft tells how sure it is, and costs set the thresholds."""
    policy = controller()
    part = policy.parts["throughput"]
    options = {} if own is None else {"draft_confidence": own}
    views = [view(f"{i}", options=options) for i in range(requests)]
    for _ in range(30):
        chosen = policy.choose(views)
        planned = [state.k for state in part.running.values()]
        outcomes = [RequestRound(v.rid, k, min(k, 1), hoped=told * k) for v, k in zip(views, chosen, strict=True)]
        verify = 18.0 + 2.0 * requests + sum(chosen)
        policy.observe(RoundRecord(outcomes, requests + sum(chosen), verify, verify + 1.0))
    assert min(planned) >= 1
    assert chosen == [min(k + more, 8) for k in planned]


def test_a_request_that_began_with_ready_guesses_is_planned_when_they_end():
    """What the first plan gave them is not what the model is worth, and no dwell time holds it back."""
    policy = controller()
    play(policy, [view("a")], lambda rid, k: k, 60)
    policy.forget("a")
    for _ in range(3):
        play(policy, [view("b", offers=[Offer("cache", 0.9)])], lambda rid, k: k, sources=lambda v, k: ["cache"] * k)
    assert play(policy, [view("b")], lambda rid, k: k)[0] >= 5
