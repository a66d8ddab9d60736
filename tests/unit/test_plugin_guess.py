"""Guesses of one draft step: a damaged draft ends its chains and harms nobody."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sgl_spec.config import RequestOptions
from sgl_spec.control.base import RequestView
from sgl_spec.draft.base import Proposal
from sgl_spec.sglang_plugin.chains import DAMAGED, ChainOrder, Chains, Sampling, guess
from sgl_spec.sglang_plugin.guesses import Guessed, Guesser
from sgl_spec.sglang_plugin.passes import Span

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


def test_an_order_carries_both_thresholds_and_what_the_draft_promised_comes_back() -> None:
    orders: list[ChainOrder] = []

    def chains(given: list[ChainOrder], _generator: torch.Generator) -> Chains:
        orders.extend(given)
        return Chains([[7, 8]], [[None, None]], [1.3])

    policy = SimpleNamespace(confidence=lambda _view: 0.1, go_on=lambda _view: 0.4)
    draft = SimpleNamespace(reads_own_text=False, context_length=100, chains=chains)
    config = SimpleNamespace(draft_temperature=None)
    req = SimpleNamespace(kv=SimpleNamespace(req_pool_idx=0), origin_input_ids=[1, 2, 3], output_ids=[4])
    track = SimpleNamespace(
        rid="a", read=0, offer=Proposal(), sampling=None, options=RequestOptions(), verified=0, drafting=False
    )
    guesser = Guesser(config, policy, draft)
    [guessed], _ = guesser.guess([req], [track], [RequestView("a", 9)], [2], [3], torch.Generator())
    assert (orders[0].stop_below, orders[0].go_on) == (0.1, 0.4)
    assert guessed.hoped == 1.3
    assert guessed.tokens == [7, 8]


def test_settling_voids_the_slots_of_every_request_before_it_marks_what_was_read() -> None:
    held = {0: np.array([4, 5, 6, 7]), 1: np.array([0, 1, 2, 3])}
    voided: list[list[int]] = []

    def commit(pool_row: int, read: int, end: int, guesses: list[int], accepted: int) -> int:
        assert voided == [[6, 7], [1]]  # of all requests, whichever comes first
        return end + 1 + accepted

    draft = SimpleNamespace(forget=lambda slots: voided.append(slots.tolist()), commit=commit)
    tracks = [SimpleNamespace(drafting=True, read=1), SimpleNamespace(drafting=False, read=0)]
    Guesser(SimpleNamespace(), SimpleNamespace(), draft).settle(
        [Span(0, 2, [9, 8]), Span(1, 1, [7])],
        lambda row, start, end: held[row][start:end],
        tracks,
        [Guessed([8], [None], ["model"]), Guessed([], [], [])],
        [1, 0],
    )
    assert voided == [[6, 7], [1]]
    assert [(track.drafting, track.read) for track in tracks] == [(False, 4), (False, 0)]
