"""Which slots are taken: by hand, at the edges, and where everything is equal."""

import math

import pytest

from sgl_spec.control.acceptance import COLD, COLD_DEEPER, GOES_DEEPER, GOES_ON
from sgl_spec.control.base import Offer, RequestRound, RequestView, RoundRecord
from sgl_spec.control.cost import CostModel
from sgl_spec.control.explore import Running
from sgl_spec.control.plan import AHEAD, Prices, Slots, best, reading
from sgl_spec.control.throughput import ThroughputController


def slots_of(survival):
    batch, positions = len(survival), len(survival[0])
    return Slots(survival, [[1.0] * positions] * batch, [0] * batch, [1.0] * batch, [1.0] * batch, [0.0] * batch)


def flat_costs(plain, row):
    """`plain` milliseconds a pass, `row` more for each guess; drafts cost nothing."""
    cost = CostModel()
    cost.verify.theta, cost.verify.count = [plain, 0.0, row, 0.0, 0.0, 0.0], 9
    for line in (cost.draft, cost.catchup, cost.overhead):
        line.theta, line.count = [0.0, 0.0, 0.0], 9
    return cost


@pytest.mark.parametrize(
    ("pending", "to_come", "tokens"),
    [
        (30, None, 30.0),  # not known how long it goes on: all of it is for this round
        (1, 400, 1.0),  # nothing missed
        (61, 12, 11.0),  # sixty missed tokens over six rounds of two
        (61, 13, 11.0),  # the last token has no round of its own
        (61, 3, 61.0),
        (61, 1, 61.0),  # one round at least
        (61, 4 * AHEAD, 1 + 60 / AHEAD),
    ],
)
def test_what_was_missed_is_read_for_the_rounds_to_come(pending, to_come, tokens):
    assert reading(RequestView("a", 8, pending=pending, to_come=to_come)) == tokens


def test_equal_requests_are_served_in_their_order():
    """Forty alike; a pass over more than sixty guesses is beyond the kernel's step."""
    prices = Prices(flat_costs(10.0, 0.01), slots_of([[0.8, 0.5]] * 40))
    prices.verify[61:] = [ms + 1000.0 for ms in prices.verify[61:]]
    assert best(prices)[0] == [2] * 20 + [1] * 20


def test_no_gain_is_no_reason_to_draft():
    """Two tokens at double the price are as fast as one."""
    chosen, value = best(Prices(flat_costs(8.0, 8.0), slots_of([[1.0]])))
    assert (chosen, value.tokens, value.ms) == ([0], 1.0, 8.0)
    assert type(chosen[0]) is int
    assert best(Prices(flat_costs(8.0, 7.9), slots_of([[1.0]])))[0] == [1]


def test_a_fast_device_drafts_like_a_slow_one_but_no_round_takes_no_time():
    assert best(Prices(flat_costs(0.2, 0.01), slots_of([[0.9]])))[0] == [1]
    assert best(Prices(flat_costs(8.0, -8.0), slots_of([[0.9]])))[0] == [0]  # not to be believed


def test_two_of_many_requests_do_not_run_ahead():
    """Guesses of two among sixteen would raise the sum of tokens, and slow fourteen."""
    cost = CostModel()
    cost.verify.theta, cost.verify.count = [18.0, 1.8, 2.4, 0.0, 0.0, 0.0], 9
    survival = [[0.95, 0.9, 0.86, 0.81]] * 2 + [[0.0] * 4] * 14
    slots = Slots(survival, [[1.0] * 4] * 16, [4] * 16, [1.0] * 16, [1.0] * 16, [0.0] * 16)
    prices = Prices(cost, slots)
    ahead = [3, 3] + [0] * 14
    tokens = 16 + 2 * sum(survival[0][:3])
    assert tokens / prices.worth(ahead).ms > 16 / prices.plain
    assert prices.worth(ahead).rate < 16 / prices.plain
    assert not any(best(prices)[0])


def test_free_slots_are_taken_alone_where_drafting_does_not_pay():
    """Two cached guesses are cheap; a likelier guess of the draft stands before them in the order of survival."""
    model = CostModel()
    for _ in range(60):
        model.observe(RoundRecord([RequestRound("a", 0, 0)] * 2, 2, 20.0, 20.5))
        drafts = {"draft_ms": 400.0, "draft_steps": 1, "draft_rows": 1, "catchup_ms": 400.0, "catchup_tokens": 2}
        model.observe(RoundRecord([RequestRound("a", 1, 0)] * 2, 4, 21.0, 821.5, **drafts))
    slots = Slots([[0.6, 0.5], [0.9, 0.0]], [[1.0, 1.0]] * 2, [2, 0], [1.0, 1.0], [1.0, 1.0], [0.0, 0.0])
    chosen, value = best(Prices(model, slots))
    assert chosen == [2, 0]
    assert value.tokens == pytest.approx(2 * math.sqrt(1 + 0.6 + 0.5))
    assert value.rate > Prices(model, slots).worth([2, 1]).rate
    slots.survival[0][1], slots.free[0] = 0.0, 1  # a single one is ready
    assert best(Prices(model, slots))[0] == [1, 0]


def test_slots_of_a_round_by_hand():
    """The model's guesses stand behind what is ready; past the limit there is nothing. Requests of a program share."""
    part = ThroughputController(4)
    a, b = [COLD, *[COLD_DEEPER] * 3], [GOES_ON, *[GOES_DEEPER] * 3]  # before anything was seen
    views = [
        RequestView("a", 3, offers=[Offer("cache", 0.8), Offer("cache", 0.7)], pending=5, context=2000, to_come=8),
        RequestView("b", 1, offers=[Offer("cache", 0.8), Offer("cache", 0.7)], context=500),
        RequestView("c", 8, pending=7),
    ]
    slots = part._slots(views, [Running(("", 0), 10)] * 3, [3, 1, 4])
    assert slots.reach[0] == pytest.approx([1.0, 1.0, b[0], 0.0])
    assert slots.survival[0] == pytest.approx([0.8, 0.56, 0.56 * a[0] * b[0], 0.0])
    assert (slots.reach[1], slots.survival[1]) == ([1.0, 0.0, 0.0, 0.0], [0.8, 0.0, 0.0, 0.0])
    assert slots.reach[2] == pytest.approx([math.prod(b[: n + 1]) for n in range(4)])
    assert slots.survival[2] == pytest.approx([math.prod([*a[: n + 1], *b[: n + 1]]) for n in range(4)])
    assert (slots.free, slots.pending, slots.unread) == ([2, 1, 0], [2.0, 1.0, 7.0], [5.0, 1.0, 7.0])
    assert slots.context == [2.0, 0.5, 0.0]
