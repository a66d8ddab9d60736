"""What is ordered from a draft model, what it returns, and how it guesses one token."""

from dataclasses import dataclass, field, replace

import torch

from sgl_spec.verify.processors import Filters, target_probs
from sgl_spec.verify.seeded import seeded_tokens


@dataclass(slots=True)
class Sampling:
    """How a request samples; None in its place means greedy."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None = None  # with a seed, guesses share the noise of the target's tokens


def draft_sampling(sampling: Sampling | None, temperature: float | None) -> Sampling | None:
    """Return how the draft samples for a request: at its own temperature where the server gives it one."""
    if sampling is None or temperature is None:
        return sampling
    return None if temperature == 0.0 else replace(sampling, temperature=temperature)


@dataclass(slots=True)
class ChainOrder:
    """Draft up to `count` tokens after a request's text."""

    pool_row: int  # the request's row in req_to_token
    read: int  # leading positions that the draft has read
    unread: list[int]  # the tokens after them: output, bonus token, guesses of other sources (never empty)
    count: int  # at least 1
    stop_below: float  # stop when the product of confidences falls under it
    sampling: Sampling | None

    @property
    def end(self) -> int:
        """Position of the first drafted token."""
        return self.read + len(self.unread)


@dataclass(slots=True)
class Chains:
    """Drafted tokens per order, with each one's law, and what they cost."""

    tokens: list[list[int]]
    laws: list[list[torch.Tensor | None]]  # q [H] over the hot head's columns; None is a point mass
    catchup_ms: float = 0.0
    catchup_tokens: int = 0
    draft_ms: float = 0.0
    draft_steps: int = 0
    draft_rows: int = 0


@dataclass(slots=True)
class Guesses:
    """One guess per row: `tokens` [b], `confidences` [b] = max q, `laws` as in `Chains`."""

    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    laws: list[torch.Tensor | None] = field(default_factory=list)


def guess(
    logits: torch.Tensor,
    samplings: list[Sampling | None],
    positions: list[int],
    hot_ids: torch.Tensor | None,
    generator: torch.Generator | None = None,
) -> Guesses:
    """Guess the next token of each row of `logits` [b, H]; `hot_ids` [H] are the columns' tokens.

    The confidence is the largest probability of q, a function of the text before the token and not of the
    token drawn: stopping on it leaves the emitted law exact.
    """
    top, column = torch.softmax(logits, dim=-1).max(dim=-1)
    guesses = Guesses(column.tolist(), top.tolist(), [None] * len(samplings))
    rows = [i for i, s in enumerate(samplings) if s is not None]
    if rows:
        chosen = [s for s in samplings if s is not None]
        q = target_probs(logits[rows], filters(chosen, logits.device))
        drawn = torch.multinomial(q, 1, generator=generator)[:, 0]
        seeded = [j for j, s in enumerate(chosen) if s.seed is not None]
        if seeded:
            seeds = torch.tensor([chosen[j].seed for j in seeded], device=logits.device)
            at = torch.tensor([positions[rows[j]] for j in seeded], device=logits.device)
            tokens = seeded_tokens(q[seeded], seeds, at, hot_ids)
            drawn[seeded] = tokens if hot_ids is None else torch.searchsorted(hot_ids, tokens)
        for j, i in enumerate(rows):
            guesses.tokens[i] = int(drawn[j])
            guesses.laws[i] = q[j]
            guesses.confidences[i] = float(q[j].max())
    if hot_ids is not None:
        guesses.tokens = hot_ids[torch.tensor(guesses.tokens)].tolist()
    return guesses


def filters(samplings: list[Sampling], device: torch.device | str) -> Filters:
    """Return the tensors that `target_probs` wants, one row per sampling."""
    return Filters(
        temperature=torch.tensor([s.temperature for s in samplings], device=device),
        top_k=torch.tensor([s.top_k for s in samplings], device=device),
        top_p=torch.tensor([s.top_p for s in samplings], device=device),
        min_p=torch.tensor([s.min_p for s in samplings], device=device),
        any_filter=any(s.top_k < (1 << 30) or s.top_p < 1.0 or s.min_p > 0.0 for s in samplings),
        any_greedy=False,
    )
