"""The statistical test keeps its promises: false alarms at alpha, a 2% bias caught with the stated power."""

import numpy as np
import pytest

from sgl_spec.errors import ConfigError
from sgl_spec.verify.chi_square import chi_square, power_of, samples_needed

LAW = np.array([0.45, 0.25, 0.12, 0.08, 0.05, 0.03, 0.015, 0.005])


def test_false_alarms_at_a_loose_alpha():
    rng = np.random.default_rng(1)
    runs = 2000
    alarms = sum(not chi_square(rng.multinomial(5000, LAW), LAW, alpha=0.01).passed for _ in range(runs))
    assert 0.003 * runs < alarms < 0.02 * runs  # expected 20, standard deviation 4.4


def test_stated_power_against_a_two_percent_bias():
    rng = np.random.default_rng(2)
    n = samples_needed(LAW, bias=0.02, alpha=1e-6, power=0.99)
    bent = LAW + np.array([0.02, -0.02, 0, 0, 0, 0, 0, 0])
    caught = sum(not chi_square(rng.multinomial(n, bent), LAW).passed for _ in range(300))
    assert caught >= 290
    assert 10_000 < n < 100_000


def test_power_grows_and_is_found_from_both_sides():
    n = samples_needed(LAW)
    assert power_of(LAW, n) >= 0.99 > power_of(LAW, n - 1)


def test_an_impossible_token_fails_at_once():
    verdict = chi_square([500, 499, 1], [0.5, 0.5, 0.0])
    assert not verdict.passed
    assert verdict.p_value == 0.0


def test_rare_tokens_are_pooled():
    law = np.array([0.5, 0.498] + [0.0005] * 4)
    assert chi_square([500, 498, 1, 0, 1, 0], law).cells == 2 + 0 + (4 * 0.0005 * 1000 > 0)


def test_one_possible_token_has_no_power():
    assert power_of([1.0, 0.0], 1000) == 0.0
    assert chi_square([10, 0], [1.0, 0.0]).passed


@pytest.mark.parametrize("law", [[0.5, 0.4], [0.5, 0.6, -0.1], [[0.5], [0.5]]])
def test_a_law_that_is_none(law):
    with pytest.raises(ConfigError):
        chi_square(np.ones(len(law)), law)
