"""The statistical test keeps its promises: false alarms at alpha, a 2% bias caught with the stated power."""

import numpy as np
import pytest
from scipy.stats import chi2, ncx2

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
    assert chi_square([500, 498, 1, 0, 1, 0], law).cells == 3
    assert chi_square([500, 500, 0], [0.5, 0.4995, 0.0005]).cells == 3  # however rare


def test_one_possible_token_has_no_power():
    assert power_of([1.0, 0.0], 1000) == 0.0
    assert chi_square([10, 0], [1.0, 0.0]).passed


@pytest.mark.parametrize("law", [[0.5, 0.4], [0.5, 0.6, -0.1], [[0.5], [0.5]], [[1.0, 0.0], [0.0, 0.0]]])
def test_a_law_that_is_none(law):
    with pytest.raises(ConfigError, match=r"^the law must be one probability per counted token, with sum 1\.$"):
        chi_square(np.ones(len(law)), law)


def test_a_verdict_by_hand():
    verdict = chi_square([30, 70], [0.5, 0.5], alpha=1e-3)
    assert verdict.statistic == 16.0
    assert verdict.p_value == pytest.approx(6.3343e-5, rel=1e-4)
    assert verdict.threshold == pytest.approx(10.8276, rel=1e-5)
    assert (verdict.passed, verdict.cells, verdict.draws, verdict.alpha) == (False, 2, 100, 1e-3)
    assert chi_square([30, 70], [0.5, 0.5], alpha=1e-5).passed
    assert chi_square([4, 6], [0.5, 0.5]).cells == 2  # 5 expected are enough
    assert chi_square([4, 5], [0.5, 0.5]).cells == 1


def test_a_law_of_another_length():
    with pytest.raises(ConfigError, match="one probability per counted token"):
        chi_square([5, 5, 5], [0.5, 0.5])


def test_degrees_of_freedom_are_one_less_than_cells():
    verdict = chi_square([30, 20, 30, 20], [0.25] * 4, alpha=1e-3)
    assert (verdict.statistic, verdict.cells) == (4.0, 4)
    assert verdict.threshold == pytest.approx(16.2662, rel=1e-5)
    assert verdict.p_value == pytest.approx(0.26146, rel=1e-4)


def test_draws_are_looked_for_between_16_and_a_trillion():
    assert samples_needed([0.5, 0.5], bias=0.5, alpha=0.5, power=0.1) == 16
    assert samples_needed([1.0, 0.0]) == 1 << 40  # nothing to see, however long one looks


def test_power_by_hand():
    """Noncentrality 1000 * 0.03**2 * (2 + 2) = 3.6 at one degree of freedom: P((Z + 1.8974)**2 > 3.8415)."""
    assert power_of([0.5, 0.5], 1000, bias=0.03, alpha=0.05) == pytest.approx(0.47512, abs=1e-4)
    two = ncx2.sf(chi2.isf(0.05, 2), 2, 1000 * 0.03**2 * (1 / 0.5 + 1 / 0.3))
    assert power_of([0.2, 0.5, 0.3], 1000, bias=0.03, alpha=0.05) == pytest.approx(two)
    assert samples_needed([0.5, 0.5], bias=0.03, alpha=0.05, power=0.4751) in range(990, 1011)


def test_a_law_may_miss_one_by_rounding_only():
    assert chi_square([50, 50], [0.5, 0.5 + 5e-7]).passed
    with pytest.raises(ConfigError):
        chi_square([50, 50], [0.5, 0.50001])
