"""Predicted speed of a draft, by hand."""

import pytest

from sgl_spec.train.gain import best_length

FLAT = dict.fromkeys(range(1, 7), 20.0)


def test_a_perfect_free_draft_takes_the_longest_chain() -> None:
    gain = best_length([1.0] * 5, 0.0, FLAT)
    assert gain.num_speculative_tokens == 5
    assert gain.tokens_per_s == pytest.approx(6 * 50)
    assert gain.plain_tokens_per_s == pytest.approx(50)


def test_one_guess_by_hand() -> None:
    gain = best_length([0.5], 5.0, {1: 20.0, 2: 25.0})
    assert gain.num_speculative_tokens == 0  # 1.5 tokens in 30 ms are as many as 1 in 20
    gain = best_length([0.6], 5.0, {1: 20.0, 2: 25.0})
    assert (gain.num_speculative_tokens, gain.tokens_per_s) == (1, pytest.approx(1.6e3 / 30))


def test_a_useless_draft_is_left_out() -> None:
    gain = best_length([0.05] * 5, 3.0, FLAT)
    assert gain.num_speculative_tokens == 0
    assert gain.tokens_per_s == gain.plain_tokens_per_s
