"""Expected tokens per verify, and where the article's `K * p` is off.

With conditional acceptance a_j and survival s_j = a_1 ... a_j, a round of K guesses emits

    E(K) = 1 + s_1 + ... + s_K        tokens, the bonus token included.

The article computes expected tokens as K * p. Read as p = accepted / proposed at this K, K * p counts the
accepted guesses rightly but forgets the bonus token, so it is one token short. Read as p = chance of each
guess, it is E(K) = (1 - p^(K+1)) / (1 - p) that holds, and K * p is too high for long drafts, since a guess
counts only if all before it were right. Under both readings the cost of drafting and of the wider verify is
missing, without which no K is better than another.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ARTICLE_RATES = {3: 0.82, 5: 0.72, 7: 0.62, 10: 0.48}  # K -> acceptance, the article's table
ARTICLE_TEMPERATURES = (0.3, 0.7, 1.0, 1.2)


def expected_tokens(survival: Sequence[float]) -> float:
    """E(K) for K = len(survival)."""
    return 1.0 + sum(survival)


def constant(p: float, k: int) -> list[float]:
    """Survival of k guesses that are each right with probability p, independently: p, p^2, ..."""
    return [p ** (j + 1) for j in range(k)]


def from_rates(rates: Mapping[int, float]) -> list[float]:
    """Survival s_1..s_K that reproduces accepted/proposed = rates[K] at each K of the table.

    The accepted tokens K * rate are interpolated by a monotone cubic (Fritsch & Carlson 1980) through 0;
    their differences are the survival.
    """
    xs = [0, *sorted(rates)]
    ys = [0.0, *(k * rates[k] for k in sorted(rates))]
    slopes = [(ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i]) for i in range(len(xs) - 1)]
    tangents = [min(1.0, 1.5 * slopes[0] - 0.5 * slopes[1]) if len(slopes) > 1 else slopes[0]]
    for left, right in itertools.pairwise(slopes):
        tangents.append(2 * left * right / (left + right) if left + right > 0 else 0.0)
    tangents.append(max(0.0, 1.5 * slopes[-1] - 0.5 * tangents[-1]))
    sums = [0.0]
    for i in range(len(slopes)):
        width = xs[i + 1] - xs[i]
        for step in range(1, width + 1):
            t = step / width
            sums.append(
                (1 + 2 * t) * (1 - t) ** 2 * ys[i]
                + t * (1 - t) ** 2 * width * tangents[i]
                + t * t * (3 - 2 * t) * ys[i + 1]
                + t * t * (t - 1) * width * tangents[i + 1]
            )
    return [right - left for left, right in itertools.pairwise(sums)]


@dataclass(frozen=True, slots=True)
class ArticleRow:
    """One line of the article's table, checked."""

    k: int
    p: float
    article: float  # K * p
    as_rate: float  # 1 + K * p: tokens per verify if p is accepted / proposed
    as_chance: float  # E(K) if p is the chance of each guess
    chance_error: float  # K * p over that, minus 1
    speedup: float  # E(K) as rate, over the cost of a round relative to a plain token


def article_table(cost: Mapping[int, float], rates: Mapping[int, float] = ARTICLE_RATES) -> list[ArticleRow]:
    """The table with both readings; `cost[K]` is a round of K guesses relative to a plain token."""
    rows = []
    for k, p in sorted(rates.items()):
        chance = expected_tokens(constant(p, k))
        rows.append(ArticleRow(k, p, k * p, 1 + k * p, chance, k * p / chance - 1, (1 + k * p) / cost[k]))
    return rows


@dataclass(frozen=True, slots=True)
class TemperatureRow:
    """What a sampling temperature does to acceptance, on a synthetic pair of models."""

    temperature: float
    sampled: float  # chance that a guess is accepted when the draft samples at the same temperature
    argmax: float  # the same when the draft always guesses its likeliest token
    k: int  # best K for the better of the two, at the given costs
    speedup: float


def temperature_table(
    cost: Mapping[int, float], temperatures: Sequence[float] = ARTICLE_TEMPERATURES, noise: float = 0.25
) -> list[TemperatureRow]:
    """Exact acceptance, sum of min(p, q) and p(argmax q), averaged over positions of a synthetic text.

    Target logits are normal with a spread that varies by position (easy and hard tokens); the draft's are the
    same with normal noise. `cost[K]` is a round of K guesses relative to a plain token, K = 0 included.
    """
    rng = np.random.default_rng(0)
    spread = rng.uniform(1.0, 7.0, size=(256, 1))
    target = spread * rng.normal(size=(256, 400))
    draft = target + noise * spread * rng.normal(size=target.shape)
    rows = []
    for temperature in temperatures:
        p, q = _softmax(target / temperature), _softmax(draft / temperature)
        sampled = float(np.minimum(p, q).sum(axis=1).mean())
        argmax = float(np.take_along_axis(p, draft.argmax(axis=1)[:, None], axis=1).mean())
        a = max(sampled, argmax)
        speedup = {k: expected_tokens(constant(a, k)) / cost[k] for k in cost}
        best = max(speedup, key=lambda k: speedup[k])
        rows.append(TemperatureRow(temperature, sampled, argmax, best, speedup[best]))
    return rows


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
