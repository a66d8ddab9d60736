"""The emitted law equals the target's to 1e-12, by exact enumeration; planted bugs do not get through."""

import numpy as np
import pytest
import torch
from measure import emitted_law, law_error, paths_of

from sgl_spec.verify import accept
from sgl_spec.verify.accept import DraftLaw
from sgl_spec.verify.processors import keep

EXACT = 1e-12


class Toy:
    """A target and a draft whose laws depend on the whole prefix."""

    def __init__(self, vocabulary, k, seed, *laws, ids=None):
        self.vocabulary, self.k, self.ids = vocabulary, k, ids
        target, draft = laws
        rng = np.random.default_rng(seed)
        self.p, self.q = {}, {}
        for n in range(k + 1):
            for prefix in paths_of(vocabulary, n):
                self.p[prefix] = target(rng)
                self.q[prefix] = draft(rng, self.p[prefix])

    def p_rows(self, path):
        return torch.tensor(np.array([self.p[path[:n]] for n in range(self.k + 1)]))

    def q_of(self, path):
        laws = np.array([self.q[path[:n]] for n in range(self.k)])
        weight = float(np.prod([laws[n][path[n]] for n in range(self.k)]))
        columns = laws if self.ids is None else laws[:, self.ids]
        ids = None if self.ids is None else torch.tensor(self.ids)
        return weight, DraftLaw(torch.tensor(columns)[None], ids)

    def error(self, function=accept.accept_chain):
        law = emitted_law(self.p_rows, self.q_of, self.k, self.vocabulary, accept=function)
        return law_error(law, lambda prefix: self.p[prefix])


def dirichlet(v, sharp=1.0):
    return lambda rng: rng.dirichlet(np.full(v, sharp))


def one_hot(v):
    return lambda rng, p: np.eye(v)[rng.integers(v)]


def top_p_cut(v, top_p, top_k=1 << 30):
    def draw(rng):
        row = torch.tensor(rng.dirichlet(np.ones(v)))[None]
        cut = keep(row, torch.tensor([top_k]), torch.tensor([top_p], dtype=torch.float64), torch.zeros(1))
        return cut[0].numpy()

    return draw


def disjoint(v):
    half = v // 2
    return (
        lambda rng: np.concatenate([rng.dirichlet(np.ones(half)), np.zeros(v - half)]),
        lambda rng, p: np.concatenate([np.zeros(half), rng.dirichlet(np.ones(v - half))]),
    )


def zero_where_p(v):
    """q = 0 where p is largest."""

    def draw(rng, p):
        q = rng.dirichlet(np.ones(v))
        q[np.argmax(p)] = 0.0
        return q / q.sum()

    return draw


def hot_head(v, ids):
    def draw(rng, p):
        q = np.zeros(v)
        q[ids] = rng.dirichlet(np.ones(len(ids)))
        return q

    return draw


def any_q(v):
    return lambda rng, p: rng.dirichlet(np.ones(v))


CASES = {
    "any p and q, V=8 K=2": lambda: Toy(8, 2, 1, dirichlet(8), any_q(8)),
    "any p and q, V=4 K=3": lambda: Toy(4, 3, 2, dirichlet(4), any_q(4)),
    "one guess": lambda: Toy(5, 1, 13, dirichlet(5), any_q(5)),
    "p = q": lambda: Toy(5, 3, 3, dirichlet(5), lambda rng, p: p),
    "disjoint supports": lambda: Toy(6, 2, 4, *disjoint(6)),
    "one-hot q": lambda: Toy(5, 3, 5, dirichlet(5), one_hot(5)),
    "one-hot p (greedy)": lambda: Toy(4, 3, 6, lambda rng: np.eye(4)[rng.integers(4)], any_q(4)),
    "q = 0 where p > 0": lambda: Toy(5, 3, 7, dirichlet(5), zero_where_p(5)),
    "hot head": lambda: Toy(8, 2, 8, dirichlet(8), hot_head(8, [6, 1, 4]), ids=[6, 1, 4]),
    "top-p cut of p": lambda: Toy(8, 2, 9, top_p_cut(8, 0.6), any_q(8)),
    "top-k and top-p cut of p": lambda: Toy(6, 2, 10, top_p_cut(6, 0.8, 3), any_q(6)),
    "sharp p, flat q": lambda: Toy(5, 3, 11, dirichlet(5, 0.1), lambda rng, p: np.full(5, 0.2)),
    "V=8 K=3": lambda: Toy(8, 3, 12, dirichlet(8, 0.5), one_hot(8)),
}


@pytest.mark.parametrize("name", CASES)
def test_law_is_the_targets(name):
    assert CASES[name]().error() < EXACT


def test_point_masses_without_q():
    toy = Toy(5, 3, 20, dirichlet(5), one_hot(5))

    def q_of(path):
        return toy.q_of(path)[0], DraftLaw()

    law = emitted_law(toy.p_rows, q_of, 3, 5)
    assert law_error(law, lambda prefix: toy.p[prefix]) < EXACT


def test_cache_tokens_before_draft_tokens():
    """Two point masses, then a guess drawn from q, in one chain."""
    toy = Toy(4, 3, 21, dirichlet(4), any_q(4))
    cached = (2, 1)

    def q_of(path):
        if path[:2] != cached:
            return 0.0, DraftLaw()
        probs = torch.zeros(1, 3, 4, dtype=torch.float64)
        probs[0, 2] = torch.tensor(toy.q[path[:2]])
        point = torch.tensor([[True, True, False]])
        return float(toy.q[path[:2]][path[2]]), DraftLaw(probs, point=point)

    law = emitted_law(toy.p_rows, q_of, 3, 4)
    assert law_error(law, lambda prefix: toy.p[prefix]) < EXACT


@pytest.mark.parametrize("length", [0, 1, 2])
def test_shorter_chains_in_a_wide_batch(length):
    toy = Toy(4, 3, 22, dirichlet(4), any_q(4))
    law = emitted_law(toy.p_rows, toy.q_of, 3, 4, lens=length)
    assert max(map(len, law)) == length + 1
    assert law_error(law, lambda prefix: toy.p[prefix]) < EXACT


def _accept_with_p(q, guesses):
    return torch.ones(guesses.shape, dtype=torch.float64)


def _residual_is_p(last, q, guesses, at, rejected):
    return last


def _bonus_without_residual_rule(last, q, guesses, at, rejected):
    guess = guesses.gather(1, at.clamp(max=guesses.shape[1] - 1)[:, None])
    point = torch.zeros_like(last).scatter_(1, guess, 1.0)
    return torch.where(rejected[:, None], (last - point).clamp(min=0.0) + 1e-300, last)


@pytest.mark.parametrize(
    ("attribute", "bug"),
    [
        ("_q_of_guesses", _accept_with_p),  # accept with p instead of min(1, p / q)
        ("residual", _residual_is_p),  # after a rejection, draw from p
        ("residual", _bonus_without_residual_rule),  # after a rejection, only exclude the guess
    ],
)
def test_planted_bugs_are_caught(monkeypatch, attribute, bug):
    monkeypatch.setattr(accept, attribute, bug)
    assert CASES["any p and q, V=4 K=3"]().error() > 1e-3


def test_measuring_leaves_no_room():
    """The measurement itself sees a bias of one part in a million."""

    def biased(p, guesses, lens, q, coins):
        bent = p.clone()
        bent[..., 0] *= 1.0 + 1e-6
        return accept.accept_chain(bent, guesses, lens, q, coins=coins)

    assert CASES["any p and q, V=4 K=3"]().error(biased) > 1e-8
