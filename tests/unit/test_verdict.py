"""Verdicts of a batch: greedy alone, and greedy, seeded and sampled requests side by side."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("sglang")
SIZE = 50


def judged(tracks, guesses, logits):
    from sgl_spec.sglang_plugin.guesses import Guessed
    from sgl_spec.sglang_plugin.verdict import judge

    batch = SimpleNamespace(
        sampling_info=SimpleNamespace(logit_bias=None, has_custom_logit_processor=False),
        has_grammar=False,
        seq_lens_cpu=torch.tensor([10 + i for i in range(len(tracks))]),
    )
    guessed = [Guessed(list(g), [None] * len(g), ["model"] * len(g)) for g in guesses]
    return judge(batch, tracks, guessed, logits, None, torch.Generator().manual_seed(0))


def track(sampling=None, penalties=None):
    return SimpleNamespace(sampling=sampling, penalties=penalties)


def certain(*tokens: int) -> torch.Tensor:
    """Logits of a target that is sure of these tokens, row by row."""
    return torch.nn.functional.one_hot(torch.tensor(tokens), SIZE).float() * 100


def test_greedy_requests_of_uneven_lengths():
    verdict = judged([track()] * 3, [[4, 5, 6], [], [9]], certain(4, 5, 7, 8, 1, 2, 3))
    assert verdict.accepted == [2, 0, 0]
    assert verdict.tokens == [[4, 5, 7], [1], [2]]


def test_greedy_seeded_and_sampled_requests_side_by_side():
    from sgl_spec.sglang_plugin.chains import Sampling

    sampled, seeded = Sampling(1.0, 1 << 30, 1.0, 0.0), Sampling(1.0, 1 << 30, 1.0, 0.0, seed=7)
    tracks = [track(), track(seeded), track(sampled), track(seeded)]
    guesses = [[4], [5, 6], [7, 8], []]
    verdict = judged(tracks, guesses, certain(4, 1, 5, 6, 2, 7, 9, 3, 11))
    assert verdict.accepted == [1, 2, 1, 0]
    assert verdict.tokens == [[4, 1], [5, 6, 2], [7, 9], [11]]


def test_a_seeded_request_says_the_same_whatever_was_guessed():
    from sgl_spec.sglang_plugin.chains import Sampling

    seeded = track(Sampling(1.0, 1 << 30, 1.0, 0.0, seed=3))
    logits = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(1))
    first = judged([seeded], [[]], logits[:1].clone()).tokens[0][0]
    right = judged([seeded], [[first]], logits[:2].clone()).tokens[0]
    assert right[0] == first
    wrong = judged([seeded], [[(first + 1) % SIZE]], logits[:2].clone()).tokens[0]
    assert wrong == [first]


def test_weights_are_kept_as_bf16_only_where_that_changes_no_number():
    from sgl_spec.cpu.linear import storage_of

    weight = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    assert storage_of(weight, "fp32") == "fp32"
    assert storage_of(weight.bfloat16().float(), "fp32") == "bf16"
    assert storage_of(weight, "int8") == "int8"
    weight[0] = weight[0].bfloat16().float()
    assert storage_of(weight, "fp32") == "fp32"


def test_the_likeliest_tokens_decide_as_their_logits_do():
    from sgl_spec.sglang_plugin.guesses import Guessed
    from sgl_spec.sglang_plugin.verdict import agree

    guesses, best = [[4, 5, 6], [], [9]], [4, 5, 7, 8, 1, 2, 3]
    verdict = agree([Guessed(list(g), [None] * len(g), ["model"] * len(g)) for g in guesses], best)
    assert verdict == judged([track()] * 3, guesses, certain(*best))


@pytest.mark.parametrize(
    ("changed", "enough"),
    [
        ({}, True),
        ({"return_logprob": True}, False),
        ({"has_grammar": True}, False),
        ({"logit_bias": torch.zeros(1, SIZE)}, False),
        ({"has_custom_logit_processor": True}, False),
    ],
)
def test_when_the_likeliest_tokens_are_enough(changed, enough):
    """A batch that asks for more of the logits gets them all."""
    from sgl_spec.sglang_plugin.chains import Sampling
    from sgl_spec.sglang_plugin.verdict import only_best
    from sgl_spec.verify.processors import Penalties

    info = {"logit_bias": None, "has_custom_logit_processor": False}
    batch = {"return_logprob": False, "has_grammar": False}
    for name, value in changed.items():
        (info if name in info else batch)[name] = value
    made = SimpleNamespace(**batch, sampling_info=SimpleNamespace(**info))
    assert only_best(made, [track(), track(penalties=Penalties())]) is enough
    for other in (
        track(Sampling(1.0, 1 << 30, 1.0, 0.0)),
        track(penalties=Penalties(frequency=0.1)),
        track(penalties=Penalties(min_new_tokens=3)),
    ):
        assert only_best(made, [track(), other]) is False
