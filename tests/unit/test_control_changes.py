"""When the default controller lets a request change K, and what it books of a round: by hand, number for number."""

from types import SimpleNamespace

import pytest

from sgl_spec.control import throughput
from sgl_spec.control.acceptance import Evidence
from sgl_spec.control.base import Offer, RequestRound, RequestView, RoundRecord
from sgl_spec.control.explore import Running
from sgl_spec.control.pace import CALM, DWELL, YOUNG, YOUNG_DWELL
from sgl_spec.control.plan import ENTRY, Value
from sgl_spec.control.throughput import LOSS, MARGIN, ThroughputController

KEY = ("p", 0)


def controller(trials=YOUNG):
    """Of its program so many first guesses were judged."""
    part = ThroughputController(8)
    part.acceptance.programs.row(KEY).trials[0] = trials
    return part


def running(k, since=DWELL, batch=1, dwell=DWELL):
    return Running(KEY, dwell, k=k, since=since, batch=batch)


def move(part, states, target, held, value, plain=0.5, moved=None):
    """`chosen` afterwards; the rates are those of what runs, of the target and of plain decoding."""
    chosen = [state.k for state in states]
    moved = list(range(len(states))) if moved is None else moved
    part._move(states, chosen, target, moved, tuple(Value(rate, 1.0) for rate in (held, value, plain)))
    assert chosen == [state.k for state in states]
    return chosen


def test_k_is_kept_for_a_while_and_changes_for_a_gain():
    part, state = controller(), running(2, since=DWELL - 1)
    assert move(part, [state], [4], 1.0, 2.0) == [2]
    state.since = DWELL
    assert move(part, [state], [4], 1.0, 2.0) == [4]
    assert (state.since, state.batch, state.dwell, part.changes) == (0, 1, DWELL, 1)
    state.since = DWELL
    assert move(part, [state], [3], 1.0, 2.0) == [3]
    assert part.changes == 2


@pytest.mark.parametrize(
    ("k", "batch", "moved", "margin"),
    [
        (2, 1, 1, MARGIN),
        (0, 1, 1, ENTRY),  # to begin with drafts asks for more
        (2, 4, 1, MARGIN / 4),  # one of four promises a quarter of the gain
        (2, 4, 2, MARGIN / 2),
        (0, 4, 4, 3 * ENTRY),  # and more in a batch: two doublings
    ],
)
def test_the_gain_that_a_change_must_promise(k, batch, moved, margin):
    for share, changes in ((0.99, False), (1.01, True)):
        states = [running(k, batch=batch) for _ in range(batch)]
        chosen = move(controller(), states, [5] * batch, 1.0, 1.0 + share * margin, moved=list(range(moved)))
        assert chosen == [5 if changes and i < moved else k for i in range(batch)]


def test_whatever_runs_at_no_rate_is_left():
    part, state = controller(), running(2)
    chosen = [2]
    part._move([state], chosen, [4], [0], (Value(1.0, 0.0), Value(1.0, 1.0), Value(0.5, 1.0)))
    assert chosen == [4]


@pytest.mark.parametrize(
    ("plain", "target", "k", "dwell"),
    [
        (1.0 + LOSS + 0.001, 0, 0, CALM),  # a clear loss: at once, and off for longer
        (1.0 + LOSS - 0.001, 0, 2, DWELL),
        (1.0 + LOSS + 0.001, 3, 2, DWELL),  # fewer guesses are not the end of drafting
    ],
)
def test_a_clear_loss_ends_drafting_at_once(plain, target, k, dwell):
    state = running(2, since=0)
    assert move(controller(), [state], [target], 1.0, 1.2, plain) == [k]
    assert state.dwell == dwell


def test_what_was_lost_on_stays_off_for_longer_also_where_little_is_known():
    part, state = controller(trials=0.0), running(0, since=CALM - 1, dwell=CALM)
    assert move(part, [state], [4], 1.0, 2.0) == [0]
    state.since = CALM
    assert move(part, [state], [4], 1.0, 2.0) == [4]
    assert state.dwell == DWELL


@pytest.mark.parametrize(("trials", "k"), [(YOUNG - 0.1, 4), (YOUNG, 2)])
def test_little_known_programs_change_sooner(trials, k):
    assert move(controller(trials), [running(2, since=YOUNG_DWELL)], [4], 1.0, 2.0) == [k]
    assert move(controller(trials), [running(2, since=YOUNG_DWELL - 1)], [4], 1.0, 2.0) == [2]


@pytest.mark.parametrize(("now", "then", "changes"), [(4, 2, True), (3, 2, False), (2, 3, False), (2, 4, True)])
def test_a_batch_of_another_size_is_decided_anew(now, then, changes):
    states = [running(2, since=0, batch=then) for _ in range(now)]
    assert move(controller(), states, [4] * now, 1.0, 2.0) == [4 if changes else 2] * now


def test_each_request_changes_in_its_own_time():
    states = [running(2, since=0, batch=2), running(2, batch=2)]
    assert move(controller(), states, [4, 4], 1.0, 2.0) == [2, 4]


@pytest.mark.parametrize(
    ("ks", "ratio", "expected"),
    [
        ([-1], 1.0 + 0.9 * ENTRY, [0]),
        ([-1], 1.0 + 1.1 * ENTRY, [3]),
        ([0], 1.5, [0]),  # it draws no guess before it may change
        ([-1, 0], 1.0 + 1.9 * ENTRY, [0, 0]),  # twice as much in a batch of two
        ([-1, 1], 1.0 + 1.9 * ENTRY, [3, 1]),  # drafts run already: a newcomer may join
    ],
)
def test_drafting_begins_where_it_promises_enough(monkeypatch, ks, ratio, expected):
    batch = len(ks)
    monkeypatch.setattr(throughput, "best", lambda prices: ([3] * batch, Value(ratio * batch, prices.plain)))
    part = controller()
    part.explorer = SimpleNamespace(explore=lambda *_: set())
    states = [running(k, since=0, batch=batch) for k in ks]
    views = [RequestView(str(i), 8, program="p") for i in range(batch)]
    assert part._plan(views, states, [8] * batch) == expected
    assert [state.k for state in states] == expected


def test_what_a_round_may_be_compared_with():
    part = controller()
    for seen, batch, near in ((3, 2, True), (2, 3, True), (4, 2, False), (2, 4, False), (5, 5, True)):
        part.plain_batches = {seen: 2}
        assert part._measure_plain(batch) is not near
    part.plain_batches = {5: 1}
    assert part._measure_plain(5)


def test_requests_that_draft_share_a_forward():
    """Of four, one uses what is ready, one runs plainly."""
    part = controller()
    part.plain_batches, part.stops.token_ms = {4: 2}, 1e-9
    part.running = {rid: running(k) for rid, k in (("a", 3), ("b", 1), ("ready", 2), ("plain", 0))}
    views = [
        RequestView(rid, 8, program="p", offers=[Offer("cache", 0.5)] * 2 * (rid == "ready")) for rid in part.running
    ]
    assert part.choose(views) == [3, 1, 2, 0]
    assert part.stops.drafting == 2


def test_what_became_of_the_drafts_guesses():
    """Five asked for, two of them ready; two of the model's three were made."""
    part = controller()
    cases = {  # proposed, accepted: evidence
        (4, 3): [Evidence("a", KEY, 3, 2, 2, 1)],
        (4, 4): [Evidence("a", KEY, 3, 2, 2, 2)],
        (4, 2): [Evidence("a", KEY, 3, 2, 1, 0)],
        (4, 1): [Evidence("a", KEY, 3, 2, 0, 0)],  # a ready guess was wrong: nothing is said of those behind
    }
    for (proposed, accepted), evidence in cases.items():
        state = part.running["a"] = running(5)
        state.asked, state.offered = 5, 2
        outcome = RequestRound("a", proposed, accepted, ["cache", "cache", "model", "model"], hoped=1.5)
        part.observe(RoundRecord([outcome, RequestRound("stranger", 0, 0)], 6, 20.0, 25.0))
        assert part.evidence == evidence
        part.evidence.clear()
    assert part.evidence_rounds == 4
    assert part.stops.trust.kept == pytest.approx(0.995**2 * 1.0 + 0.995 * 2.0)
    state.offered = 5  # the model was not asked
    part.observe(RoundRecord([RequestRound("a", 2, 2, ["cache", "cache"])], 3, 20.0, 25.0))
    assert (part.evidence, part.evidence_rounds) == ([], 5)
    part.observe(RoundRecord([RequestRound("a", 0, 0)], 1, 20.0, 25.0))
    assert part.evidence_rounds == 5  # nothing fades by plain rounds


@pytest.mark.parametrize(("goes_on", "pace"), [(True, 1), (False, YOUNG_DWELL)])
def test_a_probe_is_settled_at_the_batchs_size_and_mean_length(goes_on, pace):
    part, calls = controller(), []

    def settle(now, shape, probes, cost, acceptance):
        calls.append((now, shape, probes, cost is part.cost, acceptance is part.acceptance))
        return goes_on

    part.explorer, part.rounds = SimpleNamespace(settle=settle, prober=part.explorer.prober), 7
    part.running = {"a": running(2), "b": running(0)}
    part.running["a"].asked, part.running["a"].exploring = 2, True
    part.observe(RoundRecord([RequestRound("a", 2, 1), RequestRound("b", 0, 0)], 4, 20.0, 25.0, context=6000))
    assert calls == [(7, (2, 3.0), [(KEY, 2, 1)], True, True)]
    assert part.pace == pace
    assert part.acceptance.requests.rows == {}  # taken in at once, by the program: "a" was never asked about
    assert part.acceptance.programs.seen(KEY)[1] == pytest.approx(YOUNG * 0.99 + 1.0)


def test_the_books_of_rounds():
    part = controller()
    part.running = {"a": running(3), "b": running(0)}
    plain = RoundRecord([RequestRound("a", 0, 0), RequestRound("b", 0, 0)], 2, 20.0, 21.0)
    for _ in range(2):
        part.observe(plain)
    assert (part.plain_rounds, part.since_plain, part.plain_batches) == (2, 0, {2: 2})
    part.observe(RoundRecord([RequestRound("a", 3, 1)], 4, 20.0, 25.0))
    assert (part.plain_rounds, part.since_plain) == (2, 1)
    assert part.explorer.prober.account.elapsed == 21.0 + 21.0 + 25.0
    part.rounds, part.changes = 3, 5
    part.explorer.prober.probes, part.explorer.prober.hits, part.explorer.prober.account.spent = 4, 2, 1.5
    assert part.snapshot() == {
        "controller": "throughput",
        "rounds": 3,
        "plain_rounds": 2,
        "changes": 5,
        "probes": 4,
        "probe_hits": 2,
        "probe_ms": 1.5,
        "pays": True,
        "k": {"a": 3, "b": 0},
    }
    assert [ThroughputController(k).acceptance.width for k in (0, 1, 2)] == [1, 1, 2]
