import pytest

from sgl_spec.config import RequestOptions, SpecConfig
from sgl_spec.control import make_controller
from sgl_spec.control.acceptance import MAX_PROGRAMS
from sgl_spec.control.base import Offer, RequestRound, RequestView, RoundRecord, capped
from sgl_spec.control.ema import EmaController
from sgl_spec.control.probe import Account, Prober
from sgl_spec.errors import ConfigError


def controller(name, k=5, **values):
    return make_controller(
        SpecConfig.parse({"model_path": "x", "controller": name, "num_speculative_tokens": k, **values})
    )


def view(rid="a", limit=100, **values):
    options = RequestOptions.parse(values.pop("options", {}))
    return RequestView(rid, limit, options=options, **values)


def record(*outcomes, ms=20.0):
    rows = len(outcomes) + sum(outcome.proposed for outcome in outcomes)
    return RoundRecord(outcomes, rows, ms, ms)


ALL = ("throughput", "threshold", "ema", "bandit", "fixed")


@pytest.mark.parametrize("name", ALL)
def test_limits_hold(name):
    policy = controller(name, 5)
    for round_number in range(60):
        views = [
            view("a", 3),
            view("b", options={"speculate": False}),
            view("c", options={"num_speculative_tokens": 1}),
            view("d", 0),
            view("e", model=False, offers=[Offer("cache", 0.9)]),
            view("f", model=False),
            view("g", 40),
        ]
        chosen = policy.choose(views)
        tops = [3, 0, 1, 0, 1, 0, 10]
        assert all(0 <= k <= top for k, top in zip(chosen, tops, strict=True)), (round_number, chosen)
        policy.observe(record(*(RequestRound(v.rid, k, k) for v, k in zip(views, chosen, strict=True))))


@pytest.mark.parametrize("name", ALL)
def test_empty_round_and_strangers(name):
    policy = controller(name)
    assert policy.choose([]) == []
    policy.observe(RoundRecord([], 0, 0.0, 0.0))
    policy.observe(record(RequestRound("stranger", 3, 1)))
    policy.forget("stranger")
    assert policy.snapshot()["controller"] == name


@pytest.mark.parametrize("name", ALL)
def test_forgetting_frees_what_was_kept(name):
    policy = controller(name)
    for n in range(50):
        policy.choose([view(str(n))])
        policy.observe(record(RequestRound(str(n), 1, 1)))
        policy.forget(str(n))
    part = policy.parts[name]
    assert not getattr(part, "running", {})
    assert not getattr(part, "current", {})
    assert not getattr(part, "asked", {})


@pytest.mark.parametrize("name", ["threshold", "ema", "bandit", "fixed"])
def test_confidence_of_request_goes_before_the_servers(name):
    policy = controller(name, draft_confidence=0.3)
    assert policy.confidence(view()) == 0.3
    assert policy.confidence(view(options={"draft_confidence": 0.6})) == 0.6
    assert policy.go_on(view()) == 0.3
    assert policy.go_on(view(options={"draft_confidence": 0.6})) == 0.6
    assert controller(name).confidence(view()) == 0.0


def test_fixed_never_moves():
    policy = controller("fixed", 4)
    for accepted in (0, 4, 0, 2):
        assert policy.choose([view()]) == [4]
        policy.observe(record(RequestRound("a", 4, accepted)))


def test_threshold_walks_between_two_and_ten():
    policy = controller("threshold", 5)
    seen = []
    for rate in [1.0] * 7 + [0.7] * 3 + [0.0] * 10:
        [k] = policy.choose([view()])
        seen.append(k)
        policy.observe(record(RequestRound("a", k, round(rate * k))))
    assert seen == [5, 6, 7, 8, 9, 10, 10, 10, 10, 10, 10, 9, 8, 7, 6, 5, 4, 3, 2, 2]


def test_threshold_starts_where_it_is_told_and_ignores_plain_rounds():
    policy = controller("threshold", 1)
    assert policy.choose([view()]) == [1]
    policy.observe(record(RequestRound("a", 1, 0)))
    assert policy.choose([view()]) == [1]  # below its floor it does not go up for a failure
    policy.observe(record(RequestRound("a", 0, 0)))
    assert policy.choose([view()]) == [1]


def test_ema_follows_sglang():
    """K = 3: the average starts at 2; ten batches of warm-up, then every fifth decides."""
    policy = controller("ema", 3)
    chosen = []
    for _ in range(40):
        [k] = policy.choose([view()])
        chosen.append(k)
        policy.observe(record(RequestRound("a", k, k)))
    assert chosen[:15] == [3] * 15
    assert chosen[15] == 5
    assert chosen[-1] == 7
    for _ in range(40):
        [k] = policy.choose([view()])
        policy.observe(record(RequestRound("a", k, 0)))
    assert policy.choose([view()]) == [1]  # batch 1 has no 0 among its candidates


def test_ema_by_batch_size():
    policy = controller("ema", 3)
    assert policy.choose([view(str(i)) for i in range(64)]) == [0] * 64
    assert set(policy.choose([view(str(i)) for i in range(32)])) <= {0, 1}
    eight = [view(str(i)) for i in range(8)]
    for _ in range(15):
        chosen = policy.choose(eight)
        policy.observe(record(*(RequestRound(v.rid, k, 0) for v, k in zip(eight, chosen, strict=True))))
    assert policy.choose(eight) == [0] * 8
    for _ in range(5):
        policy.observe(record(*(RequestRound(v.rid, 0, 0) for v in eight)))
    assert policy.choose(eight) == [1] * 8  # it looks again


def test_ema_within_a_small_maximum():
    assert controller("ema", 0).choose([view()]) == [0]


def test_bandit_finds_the_best_arm():
    policy = controller("bandit", 5)
    reward = {0: 1.0, 1: 1.1, 2: 1.4, 3: 1.2, 5: 0.9, 8: 0.5}
    pulls = []
    for _ in range(600):
        [k] = policy.choose([view(limit=8)])
        pulls.append(k)
        outcome = RequestRound("a", k, 0)
        policy.observe(RoundRecord([outcome], 1 + k, 10.0, 10.0 / reward[k]))
    assert max(set(pulls[300:]), key=pulls[300:].count) == 2
    assert pulls[:30] == [k for k in (0, 1, 2, 3, 5, 8) for _ in range(5)]


def test_each_request_by_its_own_controller():
    policy = controller("fixed", 5)
    views = [view("a"), view("b", options={"controller": "threshold", "num_speculative_tokens": 3}), view("c")]
    assert policy.choose(views) == [5, 3, 5]
    policy.observe(record(RequestRound("a", 5, 5), RequestRound("b", 3, 3), RequestRound("c", 5, 0)))
    assert policy.snapshot()["others"]["threshold"]["k"] == {"b": 5}
    policy.forget("b")
    assert policy.snapshot()["others"]["threshold"]["k"] == {}


def test_an_unknown_policy_is_named():
    with pytest.raises(ConfigError, match="use one of throughput, threshold, ema, bandit, fixed"):
        controller("fixed").make("nonsense")


def test_capped():
    assert capped(7, view(limit=100), 5) == 5
    assert capped(7, view(limit=-1), 5) == 0
    assert capped(7, view(model=False, offers=[Offer("cache", 0.5)] * 3), 5) == 3


def test_ema_climbs_out_of_nothing_and_stays_where_nothing_else_fits():
    idle = RoundRecord([RequestRound("a", 0, 0)] * 8, 8, 20.0, 20.0)
    ema = EmaController(0, 3)
    for _ in range(15):
        assert ema.tiers[8].k == 0
        ema.observe(idle)
    assert (ema.tiers[8].k, ema.tiers[8].average) == (1, 0.0)
    crowd = RoundRecord([RequestRound("a", 0, 0)] * 64, 64, 20.0, 20.0)
    for _ in range(15):
        ema.observe(crowd)
    assert ema.tiers[64].k == 0


def test_probed_programs_are_bounded_and_the_least_recent_goes():
    prober = Prober(Account(0.01))
    for n in range(MAX_PROGRAMS):
        prober.pause((str(n), 0)).wait = 99
    prober.pause(("0", 0))
    prober.pause(("new", 0))
    assert len(prober.pauses) == MAX_PROGRAMS
    assert prober.pause(("0", 0)).wait == 99
    assert ("1", 0) not in prober.pauses
