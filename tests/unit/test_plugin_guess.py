"""Guesses of one draft step: a damaged draft ends its chains and harms nobody."""

from dataclasses import replace

import pytest
import torch

from sgl_spec.sglang_plugin.chains import DAMAGED, Sampling, guess

HOT = torch.tensor([3, 5, 8, 13])
WARM = Sampling(temperature=1.0, top_k=1 << 30, top_p=1.0, min_p=0.0, seed=None)


@pytest.mark.parametrize("damage", [float("nan"), float("inf")])
def test_a_damaged_row_ends_its_chain(damage: float) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, damage, 2.0, 3.0], [9.0, 0.0, 0.0, 0.0]])
    for samplings in ([None] * 3, [WARM] * 3, [None, WARM, None], [None, replace(WARM, seed=4), WARM]):
        guesses = guess(logits, samplings, [5, 6, 7], HOT, torch.Generator().manual_seed(0))
        assert guesses.confidences[1] == DAMAGED < 0
        assert min(guesses.confidences[0], guesses.confidences[2]) > 0
        assert set(guesses.tokens) <= set(HOT.tolist())
        assert all(law is None or law.isfinite().all() for law in guesses.laws)


def test_without_damage_the_confidence_is_the_largest_probability() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    assert guess(logits, [None], [5], HOT).confidences == [0.25]
