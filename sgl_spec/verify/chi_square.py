"""Does a sample follow a law? Pearson's chi-square with a stated chance of a false alarm and a stated power.

`alpha` is the chance that a correct sampler fails the test; `samples_needed` says how many draws make sure
that a sampler with a given bias is caught. The bias is the least visible one of its size: mass moved between
the two likeliest tokens, where it drowns most easily in noise (noncentrality n * sum of delta^2 / p).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgl_spec.errors import ConfigError

ALPHA = 1e-6
LEAST_EXPECTED = 5.0  # cells with a smaller expected count are pooled, as the approximation asks


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one test."""

    passed: bool
    statistic: float
    threshold: float  # of the statistic at `alpha`
    p_value: float
    cells: int  # after pooling
    draws: int
    alpha: float


def chi_square(counts: ArrayLike, law: ArrayLike, alpha: float = ALPHA) -> Verdict:
    """Test observed `counts` [V] against `law` [V]; a draw where the law has no mass fails at once."""
    from scipy.stats import chi2

    seen = np.asarray(counts, dtype=float)
    p = _checked(law, seen.shape)
    draws = float(seen.sum())
    impossible = bool((seen[p == 0.0] > 0.0).any())
    observed, expected = _pooled(seen, p, draws)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = max(len(expected) - 1, 1)
    threshold = float(chi2.isf(alpha, freedom))
    passed = not impossible and statistic <= threshold
    p_value = 0.0 if impossible else float(chi2.sf(statistic, freedom))
    return Verdict(passed, statistic, threshold, p_value, len(expected), int(draws), alpha)


def samples_needed(law: ArrayLike, bias: float = 0.02, alpha: float = ALPHA, power: float = 0.99) -> int:
    """Draws after which a sampler that moves `bias` of the mass is caught with probability `power`."""
    low, high = 16, 1 << 40
    while low < high:  # the power grows with the number of draws
        middle = (low + high) // 2
        if power_of(law, middle, bias, alpha) >= power:
            high = middle
        else:
            low = middle + 1
    return low


def power_of(law: ArrayLike, draws: int, bias: float = 0.02, alpha: float = ALPHA) -> float:
    """Chance that `draws` draws reveal the least visible bias of this size."""
    from scipy.stats import chi2, ncx2

    p = np.sort(_checked(law, np.shape(law)))[::-1]
    if len(p) < 2 or p[1] <= 0.0:
        return 0.0  # one possible token: nothing to move mass to
    _, expected = _pooled(p * draws, p, float(draws))
    freedom = max(len(expected) - 1, 1)
    noncentral = draws * bias**2 * (1.0 / p[0] + 1.0 / p[1])
    return float(ncx2.sf(chi2.isf(alpha, freedom), freedom, noncentral))


def _checked(law: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    p = np.asarray(law, dtype=float)
    if p.shape != shape or p.ndim != 1 or bool((p < 0.0).any()) or abs(float(p.sum()) - 1.0) > 1e-6:
        raise ConfigError("the law must be one probability per counted token, with sum 1.")
    return p


def _pooled(
    seen: NDArray[np.float64], p: NDArray[np.float64], draws: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    expected = p * draws
    small = expected < LEAST_EXPECTED
    observed, likely = seen[~small], expected[~small]
    if float(expected[small].sum()) > 0.0:
        observed = np.append(observed, seen[small].sum())
        likely = np.append(likely, expected[small].sum())
    return observed, likely
