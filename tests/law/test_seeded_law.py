"""Seeded draws: the right law over seeds, the same text whatever the draft, K and the batch."""

import numpy as np
import pytest
import torch

from sgl_spec.verify import seeded
from sgl_spec.verify.chi_square import chi_square, samples_needed
from sgl_spec.verify.seeded import murmur3, seeded_tokens

LAW = np.array([0.4, 0.3, 0.15, 0.1, 0.05, 0.0])


def _reference(*words):
    """MurmurHash3, 32 bit, over whole 32-bit words, seed 0."""

    def rotate(x, r):
        return ((x << r) | (x >> (32 - r))) & 0xFFFFFFFF

    h = 0
    for word in words:
        k = rotate(word * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        h = (rotate(h ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= 4 * len(words)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> shift)) * factor & 0xFFFFFFFF
    return h ^ (h >> 16)


@pytest.mark.parametrize("seed", [0, 1, -1, 42, 2**40 + 3, -(2**63), 2**63 - 1])
def test_hash_is_murmur3(seed):
    rng = np.random.default_rng(seed % 1000)
    positions, columns = rng.integers(0, 2**31, 50), rng.integers(0, 2**18, 50)
    got = murmur3(torch.tensor(seed), torch.tensor(positions), torch.tensor(columns))
    low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    words = zip(positions.tolist(), columns.tolist(), strict=True)
    assert got.tolist() == [_reference(low, high, position, column) for position, column in words]


@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_law_over_seeds_and_positions(over):
    """alpha 1e-6; enough draws to catch a 2% bias with probability 0.99."""
    n = samples_needed(LAW)
    index = torch.arange(n)
    fixed = torch.full((n,), 7)
    seeds, positions = (index, fixed) if over == "seeds" else (fixed, index)
    tokens = seeded_tokens(torch.tensor(LAW).expand(n, -1), seeds, positions)
    assert chi_square(np.bincount(tokens.numpy(), minlength=len(LAW)), LAW).passed


def test_neighbouring_positions_are_independent():
    n = 40_000
    law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(n, -1)
    pairs = [seeded_tokens(law, torch.arange(n), torch.full((n,), at)) for at in (10, 11)]
    joint = np.bincount((3 * pairs[0] + pairs[1]).numpy(), minlength=9)
    assert chi_square(joint, np.outer(law[0], law[0]).ravel()).passed


def test_a_row_does_not_depend_on_its_batch():
    rng = np.random.default_rng(0)
    p = torch.tensor(rng.dirichlet(np.ones(50), size=12))
    seeds, positions = torch.arange(12) % 3, torch.arange(12) % 5
    together = seeded_tokens(p, seeds, positions)
    alone = [seeded_tokens(p[i : i + 1], seeds[i : i + 1], positions[i : i + 1])[0] for i in range(12)]
    assert together.tolist() == [int(token) for token in alone]


def test_a_hot_head_draws_with_the_targets_noise():
    """With q = p on its tokens the draft guesses the very token that the target draws."""
    ids = torch.tensor([7, 2, 5])
    p = torch.zeros(200, 9, dtype=torch.float64)
    p[:, ids] = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    seeds, positions = torch.arange(200), torch.arange(200) * 3
    assert torch.equal(seeded_tokens(p, seeds, positions), seeded_tokens(p[:, ids], seeds, positions, ids))


def test_the_noise_is_bounded_at_both_ends_of_the_hash(monkeypatch):
    """Hash 2**32 - 1 is u = 1: -log(2**-32) = 22.18. Hash 0 is u = 0: -log of the largest double, -709.78."""
    hashes = torch.tensor([[2**32 - 1, 2**31, 0]])
    monkeypatch.setattr(seeded, "murmur3", lambda *_: hashes)
    at = torch.zeros(1, dtype=torch.int64)

    def token(*logs):
        return int(seeded.seeded_tokens(torch.tensor([logs], dtype=torch.float64).exp(), at, at))

    middle = 0.36651292  # -log(-log(1/2))
    top, bottom = 32 * np.log(2), -np.log(np.finfo(np.float64).max)
    assert token(0.0, top - middle - 0.01, -1e9) == 0
    assert token(0.0, top - middle + 0.01, -1e9) == 1
    assert token(-1e9, -700.0, -700.0 + middle - bottom - 0.01) == 1
    assert token(-1e9, -700.0, -700.0 + middle - bottom + 0.01) == 2
