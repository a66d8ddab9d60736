"""The rules of probes, ema, bandit and threshold, step by step by hand."""

import math

import pytest

from sgl_spec.config import RequestOptions
from sgl_spec.control.bandit import ARMS, BONUS, DISCOUNT, HOLD, Arms, BanditController
from sgl_spec.control.base import RequestRound, RequestView, RoundRecord, capped
from sgl_spec.control.ema import WEIGHT, EmaController, Tier
from sgl_spec.control.probe import FOLLOW_UPS, HEAD_START, LONGEST, SHORTEST, Account, Prober
from sgl_spec.control.threshold import ThresholdController


def test_probes_pause_and_follow_up_by_hand():
    prober, key = Prober(Account(0.01)), ("p", 0)
    assert not prober.due(key, SHORTEST - 1, 10.0)
    assert prober.due(key, SHORTEST, 10.0)
    assert prober.result(key, 24, 3, 3, hopeless=True)  # all accepted: goes on, whatever is known
    assert prober.due(key, 25, 10.0)
    assert prober.result(key, 25, 3, 0, hopeless=False)  # undecided: goes on
    assert not prober.result(key, 26, 3, 3, hopeless=False)  # FOLLOW_UPS used up
    assert FOLLOW_UPS == 2
    assert not prober.due(key, 26 + SHORTEST - 1, 10.0)
    assert prober.due(key, 26 + SHORTEST, 10.0)
    waits = []
    for now in range(50, 60):
        assert not prober.result(key, now, 3, 1, hopeless=True)
        waits.append(prober.pause(key).wait)
    assert waits == [min(SHORTEST * 2**n, LONGEST) for n in range(1, 11)]
    assert not prober.result(key, 60, 0, 0, hopeless=True)  # nothing proposed is not "all accepted"
    assert (prober.probes, prober.hits) == (14, 12)
    prober.works(key, 100)
    assert (prober.pause(key).wait, prober.pause(key).last) == (SHORTEST, 100)
    assert not prober.due(key, 100 + SHORTEST - 1, 10.0)


def test_the_account_of_probes_by_hand():
    account = Account(0.02, elapsed=1000.0, spent=HEAD_START * 5.0 + 20.0)
    assert not account.allows(5.0)
    account.spent -= 0.1
    assert account.allows(5.0)
    assert not Account(0.0).allows(5.0)
    assert not Prober(Account(0.0)).due(("p", 0), 10**6, 5.0)


def test_an_average_walks_by_hand():
    tier = Tier((1, 3, 5, 7), down=-0.25, up=0.0, k=5, average=4.0)
    tier.update(2.0)
    assert tier.average == pytest.approx(4.0 + WEIGHT * (2.0 - 4.0))
    tier.batches, tier.average = 14, 2.25 + 1e-9  # floor of 3 is 2.25
    tier.update(tier.average)
    assert (tier.k, tier.batches) == (5, 15)
    tier.batches, tier.average = 14, 2.25
    tier.update(2.25)
    assert tier.k == 3
    for average, k in ((2.5, 3), (2.51, 5), (9.0, 7)):  # up while above K - 0.5, over several candidates
        tier.batches, tier.average, tier.k = 19, average, 3
        tier.update(average)
        assert tier.k == k
    tier.batches, tier.average, tier.k = 19, 0.0, 7
    tier.update(0.0)
    assert tier.k == 1  # the smallest candidate of this tier, in one decision
    tier.batches, tier.k, tier.average = 15, 3, 9.0
    tier.update(9.0)
    assert tier.k == 3  # no decision between the fifth batches
    off = Tier((0, 1, 3), down=0.0, up=0.0, k=1, average=0.5, batches=14)
    off.update(0.5)
    assert off.k == 0
    low = Tier((0, 1, 3), down=0.0, up=0.0, k=1, average=0.51, batches=14)
    low.update(0.51)
    assert low.k == 3  # above the floor of 0 and above what 1 can show
    eager = Tier((1, 3), down=0.0, up=-0.5, k=1, average=0.1, batches=14)
    eager.update(0.1)
    assert eager.k == 3
    off.update(0.0)
    assert off.average == 0.5  # a round without guesses says nothing
    one = Tier((1, 3), down=0.0, up=0.0, k=1, average=0.0)
    one.update(1.0)
    assert one.average == WEIGHT  # a round with one guess does


@pytest.mark.parametrize(("average", "expected"), [(-1.0, 2.0), (0.0, 0.0), (0.5, 0.5)])
def test_without_drafts_the_next_candidate_is_tried_and_what_is_known_is_kept(average, expected):
    tier = Tier((0, 3), down=0.0, up=0.0, k=0, average=average, batches=14)
    tier.update(0.0)
    assert (tier.k, tier.average) == (3, expected)


def test_tiers_by_batch_size():
    ema = EmaController(3, 10)
    sizes = {1: 1, 7: 1, 8: 8, 31: 8, 32: 32, 63: 32, 64: 64, 500: 64}
    assert {n: next(s for s, tier in ema.tiers.items() if tier is ema._tier(n)) for n in sizes} == sizes
    assert {s: (t.candidates, t.k, t.average) for s, t in EmaController(2, 3).tiers.items()} == {
        1: ((1, 3), 3, 2.0),
        8: ((0, 1, 3), 1, 0.0),
        32: ((0, 1), 1, 0.0),
        64: ((0,), 0, -1.0),
    }
    none = EmaController(5, 0)
    assert none.tiers[1].candidates == (0,)  # no candidate is within the maximum: no drafts
    assert none.snapshot() == {"controller": "ema", "tiers": dict.fromkeys((1, 8, 32, 64), (0, -1.0))}


def test_an_arm_by_hand():
    arms = Arms([3.0, 1.0, 2.0], [6.0, 3.0, 2.0], current=1)
    for _ in range(HOLD - 1):
        arms.observe(2.0, 1.0)
        assert (arms.current, arms.pulls) == (1, [3.0, 1.0, 2.0])
    arms.observe(2.0, 1.0)
    pulls = [DISCOUNT * 3.0, DISCOUNT * 1.0 + 1.0, DISCOUNT * 2.0]
    rewards = [DISCOUNT * 6.0, DISCOUNT * 3.0 + 2.0, DISCOUNT * 2.0]
    assert (arms.pulls, arms.rewards) == (pytest.approx(pulls), pytest.approx(rewards))
    means = [r / p for r, p in zip(rewards, pulls, strict=True)]
    total = math.log(1 + sum(pulls))
    scores = [m + BONUS * max(means) * math.sqrt(total / p) for m, p in zip(means, pulls, strict=True)]
    assert arms.current == scores.index(max(scores))
    assert (arms.left, arms.tokens, arms.ms) == (HOLD, 0.0, 0.0)
    still = Arms([0.0, 0.0], [0.0, 0.0])
    for _ in range(2 * HOLD):
        still.observe(1.0, 0.0)  # no time has passed: nothing to divide by
    assert still.pulls == [0.0, 0.0]
    still.observe(1.0, 1.0)
    assert (still.current, still.pulls, still.rewards[0]) == (1, [1.0, 0.0], pytest.approx(2 * HOLD + 1.0))


def test_arms_by_batch_size_and_what_earns_them():
    bandit = BanditController(3)
    assert bandit.arms == tuple(k for k in ARMS if k <= 3)
    assert [n for n in range(1, 10) if bandit._arms(n) is not bandit._arms(n - 1 or 1)] == [2, 3, 5, 9]
    outcomes = [RequestRound("a", 3, 2), RequestRound("b", 3, 0)]
    for _ in range(HOLD):
        bandit.observe(RoundRecord(outcomes, 8, 5.0, 8.0))
    assert bandit._arms(2).rewards[0] == pytest.approx(4.0 / 8.0)
    assert bandit.snapshot()["arms"][2][0] == 1


def test_a_step_by_the_articles_rule():
    policy = ThresholdController(5, 7)
    steps = {
        (5, 5, 5): 6,
        (5, 5, 4): 5,
        (5, 10, 8): 5,
        (5, 2, 1): 5,
        (5, 100, 49): 4,
        (7, 7, 7): 7,
        (2, 9, 0): 2,
        (1, 1, 1): 2,
    }
    assert {given: policy.update(given[0], RequestRound("a", *given[1:])) for given in steps} == steps
    far = ThresholdController(5, 64)
    assert (far.update(10, RequestRound("a", 1, 1)), far.update(12, RequestRound("a", 1, 1))) == (10, 12)
    assert policy.update(1, RequestRound("a", 1, 0)) == 1


def test_limits_of_a_request():
    def view(limit, options=None, **values):
        return RequestView("a", limit, options=RequestOptions.parse(options or {}), **values)

    assert capped(9, view(4), 7) == 4
    assert capped(9, view(40), 7) == 7
    assert capped(2, view(40), 7) == 2
    assert capped(9, view(40, {"num_speculative_tokens": 3}), 7) == 3
    assert capped(9, view(2, {"num_speculative_tokens": 3}), 7) == 2
    assert capped(9, view(40, {"num_speculative_tokens": 0}), 7) == 0
    assert capped(9, view(40, {"speculate": False}), 7) == 0
    assert capped(9, view(3, model=False, offers=[("cache", 0.5)] * 5), 7) == 3
    assert capped(-1, view(4), 7) == 0
