"""How long decisions stand, and which news is worth a plan."""

import pytest

from sgl_spec.control.base import Offer, RequestView
from sgl_spec.control.explore import Running
from sgl_spec.control.pace import CALM, DWELL, PLAN_EVERY, YOUNG_DWELL, dwell, pace
from sgl_spec.control.plan import Value, entry
from sgl_spec.control.throughput import ThroughputController

KEY = ("p", 0)


@pytest.mark.parametrize(
    ("state", "young", "rounds"),
    [
        (Running(KEY, DWELL, k=3), True, YOUNG_DWELL),
        (Running(KEY, DWELL, k=3), False, PLAN_EVERY),
        (Running(KEY, DWELL), True, YOUNG_DWELL),  # not decided yet
        (Running(KEY, DWELL, waits=True), True, PLAN_EVERY),
        (Running(KEY, DWELL, k=0), True, PLAN_EVERY),
        (Running(KEY, DWELL, k=0), False, PLAN_EVERY),
    ],
)
def test_plans_are_frequent_where_drafting_is_new(state, young, rounds):
    assert pace(state, young) == rounds


def test_a_young_program_changes_sooner_unless_it_lost():
    assert dwell(Running(KEY, DWELL), young=True) == YOUNG_DWELL
    assert dwell(Running(KEY, DWELL), young=False) == DWELL
    assert dwell(Running(KEY, CALM), young=True) == CALM


@pytest.mark.parametrize("drafting", [False, True])
def test_news_that_could_not_start_drafting_is_worth_no_plan(drafting):
    part, batch = ThroughputController(8), 16
    part.cost.verify.theta = [64.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    part.stops.planned(Value(tokens=16.0, ms=80.0))  # a row costs a fifth of a token
    part.pace = 100
    states = [Running(KEY, DWELL, k=int(drafting and i == 0)) for i in range(batch)]

    def due(acceptance):
        views = [RequestView(str(i), 8, offers=[Offer("cache", acceptance)]) for i in range(batch)]
        return part._plan_is_due(views, states)

    least = 0.2 if drafting else (1.0 + entry(batch)) * part.cost.slower(batch, batch) - 1.0
    assert due(least + 0.01)
    assert not due(least - 0.01)


def test_one_request_that_runs_ahead_starts_nothing_while_fifteen_wait():
    """A plan weighs the geometric mean of the requests' tokens, so news do too."""
    part = ThroughputController(8)
    part.cost.verify.theta = [64.0, 1.0, 0.1, 0.0, 0.0, 0.0]
    part.stops.planned(Value(tokens=16.0, ms=80.0))
    part.pace = 100
    sure = [Offer("cache", 0.99)] * 8
    for lucky, due in ((1, False), (3, True)):
        views = [RequestView(str(i), 8, offers=sure if i < lucky else []) for i in range(16)]
        assert part._plan_is_due(views, [Running(KEY, DWELL, k=0)] * 16) is due, lucky


def test_one_ready_guess_is_news_to_a_batch_that_drafts():
    part = ThroughputController(8)
    part.stops.planned(Value(tokens=2.0, ms=40.0))
    part.pace = 100
    states = [Running(KEY, DWELL, k=1), Running(KEY, DWELL, k=0)]
    views = [RequestView("a", 8, offers=[Offer("cache", 0.9)]), RequestView("b", 8)]
    assert part._plan_is_due(views, states)
    assert not part._plan_is_due(views[1:] * 2, states)


@pytest.mark.parametrize(("context", "due"), [(2000, True), (3000, False)])
def test_rows_of_long_requests_need_more_news(context, due):
    part, batch = ThroughputController(8), 16
    part.cost.verify.theta = [64.0, 1.0, 1.0, 0.0, 0.0, 1.0]  # a row and thousand tokens: a millisecond more
    part.stops.planned(Value(tokens=16.0, ms=80.0))
    part.pace = 100
    views = [RequestView(str(i), 8, offers=[Offer("cache", 0.9)], context=context) for i in range(batch)]
    assert part._plan_is_due(views, [Running(KEY, DWELL, k=0)] * batch) is due
