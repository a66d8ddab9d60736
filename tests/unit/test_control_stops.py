import pytest

from sgl_spec.control.base import Offer, RequestView
from sgl_spec.control.cost import CostModel
from sgl_spec.control.plan import Value
from sgl_spec.control.stops import EarlyStop


@pytest.fixture
def stops():
    """Costs in ms: 20 a round, 2 a row of it, 2 a draft forward; 2 tokens are expected of a round."""
    stops, cost = EarlyStop(None), CostModel()
    cost.verify.theta = [20.0, 0.0, 2.0, 0.0, 0.0, 0.5]
    cost.draft.theta, cost.draft.count = [2.0, 0.0, 0.0], 1
    stops.planned(Value(tokens=2.0, ms=20.0))
    return stops, cost


@pytest.mark.parametrize(
    ("offers", "k"),
    [
        ([], 3),  # nothing ready: as planned
        ([0.9, 0.9], 2 + 3),  # both pay, and are likely enough for the model's three to be drafted behind them
        ([0.9, 0.6], 2),  # .54: half of that for the row and the draft forward of the next one
        ([0.8, 0.3], 2),  # .24 pays for its row
        ([0.9, 0.1], 1),  # .09 of a token for two milliseconds of twenty-two
        ([0.05], 0),
        ([0.1], 0),  # exactly what its row costs: no gain
        ([0.8], 1 + 3),  # exactly what the row and the draft forward of the next one cost
    ],
)
def test_offers_are_taken_as_far_as_they_pay(stops, offers, k):
    stops, cost = stops
    view = RequestView("a", 8, offers=[Offer("cache", one) for one in offers])
    assert stops.behind_offers(view, 3, cost) == k


@pytest.mark.parametrize(
    ("offers", "news"),
    [
        ([], (1.0, 0)),
        ([0.2], (1.0, 0)),  # exactly what its row costs
        ([0.5], (1.5, 1)),
        ([0.5, 0.6], (1.5, 1)),  # .3 of a token would make 1.5 larger by as much as a row takes
        ([0.5, 0.7], (1.85, 2)),
        ([0.1, 0.9], (1.0, 0)),
    ],
)
def test_news_are_the_offers_that_pay_for_their_rows(stops, offers, news):
    stops, cost = stops  # a row costs .2 tokens
    view = RequestView("a", 8, offers=[Offer("cache", one) for one in offers])
    tokens, count = stops.news(view, cost)
    assert (pytest.approx(tokens), count) == news


def test_a_row_of_a_long_request_must_bring_more(stops):
    stops, cost = stops
    offers = [Offer("cache", 0.12)]
    assert stops.behind_offers(RequestView("a", 8, offers=offers), 0, cost) == 1
    assert stops.behind_offers(RequestView("a", 8, offers=offers, context=2000), 0, cost) == 0


def test_the_longer_the_chain_the_surer_its_next_guess_must_be(stops):
    """Each taken guess raises the tokens per millisecond that a further row must beat."""
    stops, cost = stops
    view = RequestView("a", 40, offers=[Offer("prediction", 0.9)] * 40)
    taken = stops.behind_offers(view, 0, cost)
    tokens = 1 + sum(0.9**j for j in range(1, taken + 1))
    assert 0.9**taken * (20 + 2 * (taken - 1)) > 2 * (tokens - 0.9**taken)
    assert 0.9 ** (taken + 1) * (20 + 2 * taken) <= 2 * tokens


def test_a_draft_that_tells_anything_ends_its_own_chains():
    stops, view = EarlyStop(None), RequestView("a", 8)
    assert not stops.by_confidence(view)
    stops.trust.learn(0.3, 0)
    assert stops.by_confidence(view)
    assert not EarlyStop(0.0, trust=stops.trust).by_confidence(view)
