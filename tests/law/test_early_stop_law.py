"""Early stop keeps the law if it is decided before a guess is drawn, and only then."""

import numpy as np
import torch
from measure import emitted_law, law_error, paths_of

from sgl_spec.verify.accept import DraftLaw

V, K = 4, 3


def _toy(seed):
    rng = np.random.default_rng(seed)
    prefixes = [path for n in range(K + 1) for path in paths_of(V, n)]
    p = {prefix: rng.dirichlet(np.ones(V)) for prefix in prefixes}
    q = {prefix: rng.dirichlet(np.full(V, 0.7)) for prefix in prefixes}
    return p, q


def _law(p, q, weight):
    """Sum over chains of every length; `weight(path)` is the chance to end drafting with that chain."""
    total = {}
    for n in range(K + 1):
        if not any(weight(path) for path in paths_of(V, n)):
            continue
        part = emitted_law(
            lambda path: torch.tensor(np.array([p[path[:j]] for j in range(len(path) + 1)])),
            lambda path: (weight(path), DraftLaw(_rows(q, path))),
            n,
            V,
        )
        for emitted, chance in part.items():
            total[emitted] = total.get(emitted, 0.0) + chance
    return total


def _rows(q, path):
    return torch.tensor(np.array([q[path[:j]] for j in range(len(path))]).reshape(1, len(path), V))


def _before_the_draw(q, stop):
    def weight(path):
        chance, sure = 1.0, 1.0
        for j, token in enumerate(path):
            sure *= q[path[:j]].max()
            if sure < stop:
                return 0.0
            chance *= q[path[:j]][token]
        return chance if len(path) == K or sure * q[path].max() < stop else 0.0

    return weight


def _after_the_draw(q, stop):
    """Drop the drawn guess itself when its probability is small: a tempting mistake."""

    def weight(path):
        chance, sure = 1.0, 1.0
        for j, token in enumerate(path):
            sure *= q[path[:j]][token]
            if sure < stop:
                return 0.0
            chance *= q[path[:j]][token]
        if len(path) == K:
            return chance
        return chance * sum(mass for mass in q[path] if sure * mass < stop)

    return weight


def test_decided_before_the_draw():
    p, q = _toy(0)
    weight = _before_the_draw(q, 0.45)
    lengths = {len(path) for n in range(K + 1) for path in paths_of(V, n) if weight(path)}
    assert len(lengths) > 1  # the rule does cut some chains and not others
    assert law_error(_law(p, q, weight), lambda prefix: p[prefix]) < 1e-12


def test_decided_after_the_draw_is_biased():
    p, q = _toy(0)
    assert law_error(_law(p, q, _after_the_draw(q, 0.3)), lambda prefix: p[prefix]) > 1e-2
