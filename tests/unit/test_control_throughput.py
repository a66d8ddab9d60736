from itertools import pairwise

import pytest

from sgl_spec.config import RequestOptions, SpecConfig
from sgl_spec.control import load_state, make_controller, save_state
from sgl_spec.control.base import Offer, RequestRound, RequestView, RoundRecord
from sgl_spec.control.throughput import PLAIN_ROUNDS, REFRESH
from sgl_spec.control.trust import Trust
from sgl_spec.errors import ConfigError


def controller(**values):
    return make_controller(SpecConfig.parse({"model_path": "x", "max_speculative_tokens": 8, **values}))


def view(rid="a", limit=100, **values):
    options = RequestOptions.parse(values.pop("options", {}))
    return RequestView(rid, limit, options=options, **values)


def play(policy, views, accept, rounds=1, step=1.0, sources=None):
    """Rounds on a machine of 20 ms, 1 ms per extra row; `accept(rid, k)` guesses are right."""
    for _ in range(rounds):
        chosen = policy.choose(views)
        outcomes = [
            RequestRound(v.rid, k, min(k, accept(v.rid, k)), sources(v, k) if sources else ())
            for v, k in zip(views, chosen, strict=True)
        ]
        extra = sum(chosen)
        drafting = [k for k in chosen if k]
        steps = max(drafting, default=1) - 1
        verify = 18.0 + 2.0 * len(views) + 1.0 * extra
        draft, catchup = steps * step, step if drafting else 0.0
        policy.observe(
            RoundRecord(
                outcomes, len(views) + extra, verify, verify + draft + catchup + 0.5, draft_ms=draft, draft_steps=steps,
                draft_rows=extra - len(drafting), catchup_ms=catchup, catchup_tokens=2 * len(drafting),
            )
        )  # fmt: skip
    return chosen


def test_first_round_is_plain_then_it_tries_short_and_grows():
    policy = controller()
    history = [play(policy, [view()], lambda rid, k: k)[0] for _ in range(40)]
    assert history[:PLAIN_ROUNDS] == [0] * PLAIN_ROUNDS
    assert 1 <= history[PLAIN_ROUNDS] <= 3
    assert history[-1] >= 5


def test_hostile_draft_is_left_alone():
    policy = controller()
    history = [play(policy, [view()], lambda rid, k: 0)[0] for _ in range(120)]
    assert sum(k > 0 for k in history[:12]) <= 9
    assert sum(k > 0 for k in history[60:]) <= 10
    assert not policy.snapshot()["pays"]


def test_slots_go_to_the_requests_that_use_them():
    policy = controller()
    good, bad = view("good", program="good"), view("bad", program="bad")
    chosen = play(policy, [good, bad], lambda rid, k: k if rid == "good" else 0, 60)
    assert chosen[0] >= 4
    assert chosen[1] <= 1


def test_a_later_request_starts_with_its_programs_experience():
    policy = controller()
    play(policy, [view("a", program="code")], lambda rid, k: k, 40)
    policy.forget("a")
    play(policy, [view("b", program="poem", temperature=1.3)], lambda rid, k: 0, 60)
    policy.forget("b")
    chosen = policy.choose([view("c", program="code")])
    assert chosen[0] >= 4
    policy.forget("c")
    [k] = policy.choose([view("d", program="poem", temperature=1.3)])
    assert k == 0 or policy.parts["throughput"].running["d"].exploring


def test_temperature_bands_are_learnt_apart():
    policy = controller()
    play(policy, [view("cool", program="p", temperature=0.3)], lambda rid, k: k, 40)
    play(policy, [view("hot", program="p", temperature=1.3)], lambda rid, k: 0, 60)
    policy.forget("cool")
    policy.forget("hot")
    assert policy.choose([view("c2", program="p", temperature=0.4)])[0] >= 4
    policy.forget("c2")
    assert policy.choose([view("h2", program="p", temperature=1.4)])[0] <= 1


def test_offers_are_used_at_once_even_when_the_draft_is_not():
    policy = controller()
    play(policy, [view()], lambda rid, k: 0, 60)
    sure = [Offer("prediction", 0.95)] * 6
    assert policy.choose([view(offers=sure)])[0] == 6
    doubtful = [Offer("cache", 0.02)] * 6
    assert policy.choose([view(offers=doubtful)])[0] == 0


def test_offers_do_not_teach_the_model_and_stop_where_they_stop():
    policy = controller()
    views = [view(offers=[Offer("cache", 0.9)] * 3, model=False)]
    chosen = play(policy, views, lambda rid, k: k, 30, sources=lambda v, k: ["cache"] * k)
    assert chosen == [3]
    assert policy.parts["throughput"].acceptance.all.seen("") == (0.0, 0.0)


def test_model_guesses_behind_wrong_offers_say_nothing():
    policy = controller()
    play(policy, [view()], lambda rid, k: k, 30)
    part = policy.parts["throughput"]
    part._take_in()
    before = list(part.acceptance.all.row("").trials)
    views = [view(offers=[Offer("cache", 0.9)] * 2)]
    play(policy, views, lambda rid, k: 1, 5, sources=lambda v, k: ["cache"] * min(k, 2) + ["model"] * (k - 2))
    part._take_in()
    now = part.acceptance.all.row("").trials
    assert all(trials <= most for trials, most in zip(now, before, strict=True))


def test_early_stop_is_learnt():
    """Asked for many, the draft makes two: the plan stops counting on the rest."""
    policy = controller()
    for _ in range(80):
        [k] = policy.choose([view()])
        made = min(k, 2)
        policy.observe(RoundRecord([RequestRound("a", made, made)], 1 + made, 20.0 + made, 22.0 + made))
    part = policy.parts["throughput"]
    part._take_in()
    going = part.acceptance.of(["a"], [("", 0)])[1][0]
    assert going[1] > 0.9
    assert going[2] < 0.2


@pytest.mark.parametrize("requests", [1, 4])
def test_a_draft_too_unsure_to_guess_is_left_alone(requests):
    """It stops before its first guess each time, so nothing is ever judged; asking costs a forward all the same."""
    policy, plain_ms, catchup_ms = controller(), 30.0, 12.0
    asked, total, lost = [], 0.0, 0.0
    for at in range(1200):
        views = [view(f"{at // 60}-{i}") for i in range(requests)]
        drafting = sum(k > 0 for k in policy.choose(views))
        draft = catchup_ms if drafting else 0.0
        outcomes = [RequestRound(v.rid, 0, 0) for v in views]
        policy.observe(
            RoundRecord(outcomes, requests, plain_ms, plain_ms + draft, catchup_ms=draft, catchup_tokens=2 * drafting)
        )
        asked.append(drafting > 0)
        total, lost = total + plain_ms, lost + draft
    assert sum(asked[:100]) <= 15
    assert lost <= 0.02 * total
    assert any(asked[600:])  # it is looked at again


def test_plain_rounds_are_measured_again():
    """Soon at first, since one may have been an outlier, then every REFRESH rounds."""
    policy = controller()
    plain = [play(policy, [view()], lambda rid, k: k)[0] == 0 for _ in range(4 * REFRESH)]
    at = [number for number, is_plain in enumerate(plain) if is_plain]
    pauses = [later - earlier for earlier, later in pairwise(at) if later > earlier + 1]
    assert pauses[0] < REFRESH / 8
    assert pauses[-1] == REFRESH + 1
    assert pauses == sorted(pauses)


def test_a_new_batch_size_is_measured_plainly_first():
    policy = controller()
    play(policy, [view()], lambda rid, k: k, 20)
    many = [view(str(i)) for i in range(8)]
    assert policy.choose(many) == [0] * 8


def test_confidence_is_what_a_token_must_be_worth():
    policy = controller()
    assert policy.confidence(view()) == 0.0
    play(policy, [view()], lambda rid, k: min(k, 2), 40)
    keep, cheap = policy.confidence(view()), policy.go_on(view())
    assert 0.01 < keep < 0.2
    assert keep < cheap < 0.9
    dear = controller()
    play(dear, [view()], lambda rid, k: min(k, 2), 40, step=3.0)
    assert dear.go_on(view()) > cheap
    for name in ("confidence", "go_on"):
        assert getattr(policy, name)(view(options={"draft_confidence": 0.25})) == 0.25
        assert getattr(controller(draft_confidence=0.3), name)(view()) == 0.3


def test_no_probes_without_a_budget():
    policy = controller(probe_share=0.0)
    history = [play(policy, [view()], lambda rid, k: k)[0] for _ in range(30)]
    assert history == [0] * 30


@pytest.mark.parametrize("k_max", [0, 1])
def test_tiny_maximum(k_max):
    policy = controller(num_speculative_tokens=k_max, max_speculative_tokens=k_max)
    assert play(policy, [view()], lambda rid, k: k, 30)[0] == k_max


def test_state_survives_a_restart(tmp_path):
    path = tmp_path / "costs.json"
    first = controller()
    assert not load_state(first, path, "pair")
    play(first, [view(program="code")], lambda rid, k: k, 60)
    assert save_state(first, path, "pair")
    second = controller()
    assert load_state(second, path, "pair")
    assert second.choose([view("b", program="code")])[0] >= 4
    assert [p.name for p in tmp_path.iterdir()] == ["costs.json"]


def test_state_of_another_pair_is_refused(tmp_path):
    path = tmp_path / "costs.json"
    save_state(controller(), path, "pair one")
    with pytest.raises(ConfigError, match="pair one"):
        load_state(controller(), path, "pair two")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": 1}', '{"format": 2, "key": "pair"}', '{"format": 2, "key": "pair", "cost": 1}',
     '{"format": 2, "key": "pair", "cost": {"lines": {}, "shapes": []}, "plain_batches": [], '
     '"acceptance": {"all": {"hits": [2], "trials": [1], "expected": 0}, "programs": []}}',
     '{"format": 2, "key": "pair", "cost": {"lines": {}, "shapes": []}, "plain_batches": [], '
     '"acceptance": {"all": {"hits": [[1]], "trials": [1], "expected": 0}, "programs": []}}'],
)  # fmt: skip
def test_damaged_state_is_an_error_with_a_remedy(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="cost_file="):
        load_state(controller(), path, "pair")


def test_state_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_state(controller(), tmp_path, "pair")


def test_other_policies_keep_nothing(tmp_path):
    policy = controller(controller="fixed")
    assert not save_state(policy, tmp_path / "x", "pair")
    assert not load_state(policy, tmp_path / "x", "pair")


def test_program_keys_are_bounded():
    policy = controller()
    part = policy.parts["throughput"]
    for n in range(1500):
        policy.choose([view(str(n), program=str(n))])
        policy.observe(RoundRecord([RequestRound(str(n), 0, 0)], 1, 20.0, 20.5))
        policy.forget(str(n))
    assert len(part.acceptance.programs.rows) == len(part.acceptance.reach.rows) == 1024
    assert len(part.acceptance.requests.rows) == 0
    assert len({id(row) for row in part.acceptance.programs.rows.values()}) == 1024


def test_what_a_draft_has_not_read_is_paid_by_the_rounds_to_come():
    """A prompt of 3,000 tokens costs twelve plain rounds to read: worth it for a long answer, not for a short one."""
    chosen = {}
    for to_come in (None, 4, 400):
        policy = controller()
        play(policy, [view("a")], lambda rid, k: k, 60)
        chosen[to_come] = policy.choose([view("b", (to_come or 100) - 1, pending=3000, to_come=to_come)])[0]
    assert chosen[None] == chosen[4] == 0
    assert chosen[400] >= 3


def test_a_draft_that_is_right_more_often_than_it_says_is_believed():
    timid, honest = Trust(), Trust()
    for _ in range(200):
        timid.learn(0.4, 1)
        honest.learn(0.4, 0)
        honest.learn(0.6, 1)
    assert timid.factor == pytest.approx(2.5, rel=0.1)
    assert honest.factor == pytest.approx(1.0, rel=0.1)
    timid.learn(0.0, 5)  # a round in which nothing was promised says nothing
    assert timid.factor == pytest.approx(2.5, rel=0.1)
