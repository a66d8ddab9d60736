"""Seeded requests repeat: the token at a position is a function of p, the seed and the position alone.

Gumbel-max: argmax over v of log p(v) + G(seed, position, v) is a draw from p. The noise does not depend on
the draft, the batch or K, so neither does the text (drafter-invariant speculation, Daliri et al. 2024). The
draft draws with the same noise from q and is then right about as often as it can be without talking to the
target: verification is `accept_greedy` with these tokens.

The hash is MurmurHash3 (32 bit) over seed (low, high word), position and token id, the definition that
SGLang's deterministic sampler uses, so without top-k, top-p and min-p both draw the same tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_WORD = 0xFFFFFFFF


def seeded_tokens(p: Tensor, seeds: Tensor, positions: Tensor, ids: Tensor | None = None) -> Tensor:
    """One draw per row. p [rows, V] (need not sum to 1), seeds and positions [rows] int64.

    `ids` [V]: the token of each column, for a hot head's q; None: column = token.
    Returns tokens [rows] int64. Rows must have some p > 0.
    """
    import torch

    columns = torch.arange(p.shape[1], device=p.device) if ids is None else ids
    uniform = murmur3(seeds[:, None], positions[:, None], columns[None, :]).double() / _WORD
    noise = -torch.log(-torch.log(uniform).clamp(min=torch.finfo(torch.float64).min, max=-(2.0**-32)))
    best = (p.double().log() + noise).argmax(dim=1)
    return columns[best]


def murmur3(seed: Tensor, position: Tensor, column: Tensor) -> Tensor:
    """MurmurHash3 of (seed low, seed high, position, column), each a 32-bit word; int64 in [0, 2**32)."""
    import torch

    state = torch.zeros((), dtype=torch.int64, device=seed.device)
    for word in (seed & _WORD, (seed >> 32) & _WORD, position & _WORD, column & _WORD):
        mixed = _multiply(word, 0xCC9E2D51)
        mixed = _multiply(((mixed << 15) | (mixed >> 17)) & _WORD, 0x1B873593)
        state = state ^ mixed
        state = ((state << 13) | (state >> 19)) & _WORD
        state = (state * 5 + 0xE6546B64) & _WORD
    state = state ^ 16
    state = _multiply(state ^ (state >> 16), 0x85EBCA6B)
    state = _multiply(state ^ (state >> 13), 0xC2B2AE35)
    return state ^ (state >> 16)


def _multiply(value: Tensor, constant: int) -> Tensor:
    """Low 32 bits of value * constant, without leaving int64: the high half is multiplied apart."""
    low = value * (constant & 0xFFFF)
    high = (value * (constant >> 16)) & 0xFFFF
    return (low + (high << 16)) & _WORD
