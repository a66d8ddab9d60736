"""The round at batch 1: exact when greedy, right in law when sampled, the same text for a seed."""

import itertools

import numpy as np
import pytest
import torch

from sgl_spec.config import RequestOptions, SpecConfig
from sgl_spec.control import make_controller
from sgl_spec.control.base import Offer
from sgl_spec.step import Request, generate
from sgl_spec.verify.chi_square import chi_square
from sgl_spec.verify.processors import Penalties

V = 12


class Models:
    """A target whose logits depend on the last two tokens, and a noisy copy of it."""

    def __init__(self, noise=0.7, seed=0):
        rng = np.random.default_rng(seed)
        self.target = torch.tensor(2.0 * rng.normal(size=(V, V, V)))
        self.draft = self.target + noise * torch.tensor(rng.normal(size=(V, V, V)))

    def target_logits(self, tokens, n):
        return torch.stack([self.target[tokens[-2 - j], tokens[-1 - j]] for j in range(n, -1, -1)])

    def draft_logits(self, tokens):
        return self.draft[tokens[-2], tokens[-1]]


def controller(name="fixed", k=4, **values):
    return make_controller(
        SpecConfig.parse({"model_path": "toy", "controller": name, "num_speculative_tokens": k, **values})
    )


def run(request, models, policy, draft=True, **kwargs):
    rounds = list(
        generate(request, models.target_logits, models.draft_logits if draft else None, policy, **kwargs)
    )
    assert [token for emitted in rounds for token in emitted] == request.tokens[2:]
    return request.tokens[2:]


def plain(models, **values):
    return run(
        Request([1, 2], 60, **values), models, controller(k=0), generator=torch.Generator().manual_seed(0)
    )


@pytest.mark.parametrize("noise", [0.0, 0.7, 50.0])
@pytest.mark.parametrize(
    ("name", "k"),
    [("fixed", 1), ("fixed", 8), ("throughput", 5), ("threshold", 5), ("ema", 3), ("bandit", 5)],
)
def test_greedy_text_is_the_targets(noise, name, k):
    models = Models(noise)
    request = Request([1, 2], 60)
    assert run(request, models, controller(name, k)) == plain(models)
    if noise == 0.0 and name == "fixed":
        stats = request.stats.as_dict()
        assert stats["draft_acceptance_rate"] == 1.0


@pytest.mark.parametrize("confidence", [0.2, 0.6, 0.95])
def test_early_stop_shortens_and_changes_nothing(confidence):
    models = Models(0.7)
    request = Request([1, 2], 60)
    assert run(request, models, controller(k=8, draft_confidence=confidence)) == plain(models)
    assert request.stats.proposed < 8 * request.stats.rounds


@pytest.mark.parametrize("noise", [0.0, 0.7, 5.0])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_seed_repeats_whatever_the_draft(noise, k):
    models = Models(noise)
    knobs = {"temperature": 0.9, "top_p": 0.95, "seed": 11}
    expected = plain(models, **knobs)
    assert run(Request([1, 2], 60, **knobs), models, controller(k=k, draft_confidence=0.1)) == expected
    assert run(Request([1, 2], 60, **{**knobs, "seed": 12}), models, controller(k=k)) != expected


def test_seeded_draft_with_the_same_noise_is_mostly_right():
    models = Models(0.2)
    request = Request([1, 2], 300, temperature=1.0, seed=3)
    run(request, models, controller(k=4))
    rate = request.stats.as_dict()["draft_acceptance_rate"]
    assert rate > 0.6


@pytest.mark.parametrize(
    "knobs",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 6},
        {"temperature": 1.0, "top_p": 0.8, "min_p": 0.05},
    ],
)
def test_sampled_text_follows_the_target(knobs):
    """Chi-square over the first three tokens, alpha 1e-6."""
    models = Models(1.0, seed=4)
    generator = torch.Generator().manual_seed(1)
    policy = controller("fixed", 3, draft_confidence=0.15)
    draws = 500
    counts = np.zeros((V, V, V))
    for _ in range(draws):
        text = run(Request([1, 2], 3, **knobs), models, policy, generator=generator)
        counts[tuple(text)] += 1
    law = np.zeros((V, V, V))
    step = Request([1, 2], 3, **knobs)
    first = step.law(models.target_logits([1, 2], 0), [])[0].numpy()
    for a, b in itertools.product(range(V), range(V)):
        if first[a] == 0.0:
            continue
        second = step.law(models.target_logits([1, 2, a], 0), [])[0].numpy()
        if second[b] > 0.0:
            law[a, b] = first[a] * second[b] * step.law(models.target_logits([2, a, b], 0), [])[0].numpy()
    assert chi_square(counts.ravel(), law.ravel() / law.sum()).passed


def test_penalties_hold_inside_a_chain():
    models = Models(0.0)
    knobs = {"frequency": 0.8, "repetition": 1.2, "min_new_tokens": 8, "stop_ids": (3,)}
    expected = run(Request([1, 2], 40, penalties=Penalties(**knobs)), models, controller(k=0))
    request = Request([1, 2], 40, penalties=Penalties(**knobs))
    assert run(request, models, controller(k=6)) == expected
    assert request.stats.as_dict()["draft_acceptance_rate"] == 1.0
    assert expected != plain(models)[:40]


def test_the_end_inside_an_accepted_run():
    models = Models(0.0)
    whole = plain(models)
    stop = whole[5]
    first = whole.index(stop)
    request = Request([1, 2], 60, stop_ids=frozenset([stop]))
    assert run(request, models, controller(k=8)) == whole[: first + 1]
    assert request.finished


def test_never_more_tokens_than_asked():
    models = Models(0.0)
    for limit in range(1, 12):
        assert run(Request([1, 2], limit), models, controller(k=8)) == plain(models)[:limit]


def test_offers_come_first_and_are_counted():
    models = Models(0.7)
    text = plain(models)

    def offers(tokens):
        done = len(tokens) - 2
        right = [(token, Offer("cache", 0.9)) for token in text[done : done + 2]]
        return [*right, (0, Offer("prediction", 0.1))] if done % 3 == 0 else right

    request = Request([1, 2], 60)
    assert run(request, models, controller(k=5), offers=offers) == text
    sources = request.stats.as_dict()["accepted_by_source"]
    assert sources["cache"]["draft_acceptance_rate"] > 0.9
    assert set(sources) == {"cache", "prediction", "model"}


def test_offers_without_a_draft_model():
    models = Models()
    text = plain(models)

    def offers(tokens):
        return [(token, Offer("prediction", 0.9)) for token in text[len(tokens) - 2 :][:3]]

    request = Request([1, 2], 60)
    assert run(request, models, controller(k=5), draft=False, offers=offers) == text
    assert request.stats.as_dict()["draft_acceptance_rate"] == 1.0


@pytest.mark.parametrize("options", [{"speculate": False}, {"num_speculative_tokens": 0}])
def test_a_request_may_decline(options):
    models = Models()
    request = Request([1, 2], 30, options=RequestOptions.parse(options))
    assert run(request, models, controller(k=5)) == plain(models)[:30]
    assert request.stats.proposed == 0


def test_a_request_may_name_its_controller():
    models = Models()
    policy = controller("fixed", 3)
    request = Request([1, 2], 30, options=RequestOptions.parse({"controller": "threshold"}))
    run(request, models, policy)
    assert set(policy.parts) == {"fixed", "threshold"}
    assert policy.parts["threshold"].snapshot()["k"] == {}
