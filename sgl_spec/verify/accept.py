"""Which guesses survive: greedy chains, exact speculative sampling, and seeded chains that repeat.

Notation of Leviathan et al. 2023 (algorithm 1) and Chen et al. 2023: p is the target's law at a position,
q the draft's, both after temperature, filters, penalties, bias and grammar. A guess x drawn from q is
accepted with probability min(1, p(x)/q(x)); at the first rejection the token comes from
norm(max(p - q, 0)); after K acceptances it comes from p. The emitted law is p, whatever q is.

Invariant: x must have been drawn from the q given here. A guess made without a probability (cache,
prediction, argmax) is a point mass, q(x) = 1: accepted with p(x), else p without x, renormalised.

All functions work on the whole batch at once: B requests, K columns, V tokens; request i has `lens[i]` <= K
guesses. Columns past that are ignored whatever they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PAD = -1  # fills the columns past the emitted tokens


@dataclass(frozen=True, slots=True)
class DraftLaw:
    """The draft's q. Without `probs` every guess is a point mass."""

    probs: Tensor | None = None  # [B, K, H], rows sum to 1
    ids: Tensor | None = None  # [H] int64: token of each column of a hot head; None: H = V, column = token
    point: Tensor | None = None  # [B, K] bool: True where the guess came without a probability


@dataclass(frozen=True, slots=True)
class Coins:
    """Uniform numbers in [0, 1), independent of each other and of the drafts."""

    accept: Tensor  # [B, K] float64
    final: Tensor  # [B] float64


def accept_greedy(draft_tokens: Tensor, lens: Tensor, argmax: Tensor) -> tuple[Tensor, Tensor]:
    """Accept the guesses that are what the target would have said.

    draft_tokens [B, K], lens [B], argmax [B, K+1] (the target's own token at each position; for seeded
    requests the token of `verify.seeded`). Returns accepted [B] (bonus not counted) and tokens [B, K+1]:
    the accepted guesses and the bonus token, then PAD.
    """
    import torch

    columns = torch.arange(argmax.shape[1], device=argmax.device)
    hit = (draft_tokens == argmax[:, :-1]) & (columns[:-1] < lens[:, None])
    accepted = hit.to(torch.int64).cumprod(dim=1).sum(dim=1)
    return accepted, argmax.masked_fill(columns > accepted[:, None], PAD)


def right_guesses(guesses: Sequence[int], own: Sequence[int]) -> int:
    """How many leading guesses are what the target would have said: `accept_greedy` for one request on the host.

    own[j] is the target's token after j guesses; there is one more of them than guesses. After a forward over all
    of a CPU model's weights nothing else is in the caches, so a dozen tensor operations cost more than this loop.
    """
    right = 0
    while right < len(guesses) and guesses[right] == own[right]:
        right += 1
    return right


def accept_chain(
    p: Tensor,
    draft_tokens: Tensor,
    lens: Tensor,
    q: DraftLaw | None = None,
    *,
    starts: Tensor | None = None,
    coins: Coins | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Exact speculative sampling of chains.

    p: [B, K+1, V], or ragged [rows, V] with `starts` [B], the first row of each request (row starts[i] + j is
    the law after j guesses; request i owns lens[i] + 1 rows). draft_tokens [B, K] int64, lens [B].
    Greedy requests fit in: their p is one-hot. Coins are drawn from `generator` if not given.
    Returns accepted [B] and tokens [B, K+1] as `accept_greedy`.
    """
    import torch

    batch, width = draft_tokens.shape
    if starts is None:
        starts = torch.arange(batch, device=p.device) * (width + 1)
        p = p.reshape(batch * (width + 1), p.shape[-1])
    if coins is None:
        drawn = torch.rand(batch, width + 1, dtype=torch.float64, device=p.device, generator=generator)
        coins = Coins(drawn[:, :width], drawn[:, width])
    columns = torch.arange(width, device=p.device)
    live = columns < lens[:, None]
    guesses = draft_tokens.masked_fill(~live, 0)
    rows = torch.where(live, starts[:, None] + columns, starts[:, None])
    p_guess = p[rows, guesses].double()
    q_guess = _q_of_guesses(q, guesses)
    hit = live & (coins.accept * q_guess < p_guess)
    accepted = hit.to(torch.int64).cumprod(dim=1).sum(dim=1)
    last = p[starts + accepted].double()
    rejected = accepted < lens
    final = inverse_cdf(residual(last, q, guesses, accepted, rejected), coins.final)
    shown = torch.cat([guesses, guesses.new_zeros(batch, 1)], dim=1)
    shown.scatter_(1, accepted[:, None], final[:, None])
    every = torch.arange(width + 1, device=p.device)
    return accepted, shown.masked_fill(every > accepted[:, None], PAD)


def residual(last: Tensor, q: DraftLaw | None, guesses: Tensor, at: Tensor, rejected: Tensor) -> Tensor:
    """max(p - q, 0) for rejected requests, p for the others; not normalised.

    last [B, V] float64 is p at position `at` [B]; guesses [B, K]; rejected [B] bool.
    """
    import torch

    if guesses.shape[1] == 0:
        return last
    where = at.clamp(max=guesses.shape[1] - 1)[:, None]
    guess = guesses.gather(1, where)
    point = torch.zeros_like(last).scatter_(1, guess, 1.0)
    if q is None or q.probs is None:
        law = point
    else:
        row = q.probs[torch.arange(len(at), device=last.device), where[:, 0]].double()
        law = row if q.ids is None else torch.zeros_like(last).index_copy_(1, q.ids, row)
        if q.point is not None:
            law = torch.where(q.point.gather(1, where), point, law)
    left = (last - law).clamp_(min=0.0)
    # p = q up to rounding: a rejection has probability 0 in exact arithmetic, and p is the right law.
    left = torch.where(left.sum(dim=1, keepdim=True) > 0.0, left, last)
    return torch.where(rejected[:, None], left, last)


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """The token in which `uniform` [B] in [0, 1) falls; weights [B, V] >= 0, of any sum. Returns [B] int64.

    A token of weight 0 is never returned.
    """
    import torch

    cumulated = weights.double().cumsum(dim=1)
    total = cumulated[:, -1:].contiguous()
    token = torch.searchsorted(cumulated, uniform[:, None] * total, right=True)
    return torch.minimum(token, torch.searchsorted(cumulated, total))[:, 0]


def _q_of_guesses(q: DraftLaw | None, guesses: Tensor) -> Tensor:
    """q of each guess, [B, K] float64; 1 for a point mass."""
    import torch

    if q is None or q.probs is None:
        return torch.ones(guesses.shape, dtype=torch.float64, device=guesses.device)
    if q.ids is None:
        law = q.probs.gather(2, guesses[:, :, None])[:, :, 0].double()
    else:
        same = q.ids == guesses[:, :, None]
        law = (q.probs * same).sum(dim=2).double()
    return law if q.point is None else torch.where(q.point, 1.0, law)
