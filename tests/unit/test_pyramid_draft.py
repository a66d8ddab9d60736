"""The pyramid inside the engine, over toy models: what each level has read stays true through rejections."""

import numpy as np
import pytest
import torch

from sgl_spec.sglang_plugin import pyramid_draft
from sgl_spec.sglang_plugin.chains import ChainOrder, Sampling
from sgl_spec.sglang_plugin.pyramid_draft import PyramidDraft
from tests.unit.toy_passes import ToyModel, toy_logits

V, SLOTS, ROWS = 7, 400, 3
WARM = Sampling(temperature=0.9, top_k=1 << 30, top_p=1.0, min_p=0.0)
SEEDED = Sampling(temperature=0.9, top_k=1 << 30, top_p=1.0, min_p=0.0, seed=5)


def pyramid_of(salts: tuple[int, ...]) -> PyramidDraft:
    table = torch.stack([torch.arange(100) + 100 * row for row in range(ROWS)]).to(torch.int32)
    models = [ToyModel(table, SLOTS, V, salt) for salt in salts]
    return PyramidDraft(models, V)  # type: ignore[arg-type]


def order(row: int, text: list[int], count: int, sampling: Sampling | None, committed: int | None = None) -> ChainOrder:
    end = len(text) - 1 if committed is None else committed
    return ChainOrder(str(row), row, 0, list(text), count, 0.0, sampling, committed=end, program="p")


def argmax(text: list[int], salt: int) -> int:
    return int(toy_logits(text, V, salt).argmax())


@pytest.mark.parametrize("salts", [(1, 2), (1, 2, 3)])
def test_greedy_drafts_are_the_top_levels_own(salts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The target here is the top level, and none is dropped: everything is accepted, for two requests."""
    monkeypatch.setattr(pyramid_draft, "TRIAL", 99)
    pyramid, generator = pyramid_of(salts), torch.Generator().manual_seed(0)
    texts = {1: [1, 2, 3], 2: [4]}
    for number in range(10):
        orders = [order(row, text, 4 if number % 3 else 1, None) for row, text in texts.items()]
        chains = pyramid.chains(orders, generator)
        for at, (row, text) in enumerate(texts.items()):
            guesses = chains.tokens[at]
            assert chains.laws[at] == [None] * len(guesses)
            assert len(guesses) >= 1
            end = len(text) - 1
            for token in guesses:
                assert token == argmax(text, salts[-1])
                text.append(token)
            for model in pyramid.models:
                model.forget(np.arange(100 * row + end, 100 * row + end + len(guesses) + 1))
            read = pyramid.commit(row, 0, end, guesses, len(guesses))
            assert end < read <= end + 1 + len(guesses)
            text.append(argmax(text, salts[-1]))  # the bonus token


@pytest.mark.parametrize("sampling", [None, WARM, SEEDED])
def test_after_rejections_the_law_is_that_of_the_text(sampling: Sampling | None) -> None:
    pyramid, generator = pyramid_of((1, 2, 3)), torch.Generator().manual_seed(1)
    text = [1, 2, 3]
    for number in range(12):
        host = [5] if number % 4 == 3 else []
        end = len(text) - 1
        chains = pyramid.chains([order(1, text + host, 4, sampling, end)], generator)
        guesses, laws = chains.tokens[0], chains.laws[0]
        for j, law in enumerate(laws):
            if sampling is not None:
                assert law is not None
                expected = torch.softmax(toy_logits(text + host + guesses[:j], V, pyramid_top(pyramid)) / 0.9, -1)
                torch.testing.assert_close(law, expected)
        accepted = number % (len(host) + len(guesses) + 1)
        pyramid.forget(np.arange(100 + end, 100 + end + len(host) + len(guesses) + 1))
        pyramid.commit(1, 0, end, host + guesses, accepted)
        text += [*(host + guesses)[:accepted], number % V]


def pyramid_top(pyramid: PyramidDraft) -> int:
    """Salt of the largest level of the last draft."""
    levels, _, _ = pyramid.last[1]
    return levels[-1].model.forward.salt  # type: ignore[attr-defined]


def test_a_hot_head_hands_up_zeros_elsewhere() -> None:
    pyramid = pyramid_of((1,))
    model = pyramid.models[0]
    model.hot_ids = torch.tensor([0, 2, 5])
    model.forward.columns = model.hot_ids  # type: ignore[attr-defined]
    chains = pyramid.chains([order(1, [1, 2], 3, WARM)], torch.Generator().manual_seed(2))
    assert set(chains.tokens[0]) <= {0, 2, 5}
    law = chains.laws[0][0]
    assert law is not None
    assert law[[1, 3, 4, 6]].sum() == 0
    assert law.sum() == pytest.approx(1.0)


def test_a_level_that_guesses_badly_is_dropped() -> None:
    pyramid, generator = pyramid_of((1, 2)), torch.Generator().manual_seed(3)
    text = [1]
    for _ in range(40):
        end = len(text) - 1
        (guesses,) = pyramid.chains([order(1, text, 3, None)], generator).tokens
        right = 0
        while right < len(guesses) and guesses[right] == argmax([*text, *guesses[:right]], 2):
            right += 1
        pyramid.forget(np.arange(100 + end, 100 + end + len(guesses) + 1))
        pyramid.commit(1, 0, end, guesses, right)
        pyramid.verified(5.0)
        text = [*text, *guesses[:right], argmax([*text, *guesses[:right]], 2)][-90:] if len(text) < 80 else [1]
    assert pyramid.choices()["keys"]["p"]["active"] == [1]


@pytest.mark.parametrize("sampling", [None, WARM])
def test_a_damaged_level_knows_nothing(sampling: Sampling | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pyramid = pyramid_of((1, 2))
    heard = pyramid.models[0].forward.logits
    monkeypatch.setattr(pyramid.models[0].forward, "logits", lambda *given, **named: heard(*given, **named) * torch.nan)
    chains = pyramid.chains([order(1, [1, 2, 3], 4, sampling)], torch.Generator().manual_seed(0))
    assert chains.tokens[0]
    assert all(law is None or law.sum() == pytest.approx(1.0) for law in chains.laws[0])


def test_every_level_is_made_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang prepares a draft worker in three steps; a model runner that missed one cannot run."""
    pyramid, calls = pyramid_of((1, 2, 3)), []
    steps = ("alloc_memory_pool", "init_attention_backends", "init_cuda_graphs")
    for level, model in enumerate(pyramid.models):
        for step in steps:
            monkeypatch.setattr(model, step, lambda level=level, step=step: calls.append((step, level)), raising=False)
    for step in steps:
        getattr(pyramid, step)()
    assert calls == [(step, level) for step in steps for level in range(3)]
