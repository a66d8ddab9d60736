"""What is ordered from a draft model, what it returns, and how it guesses token by token."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul

import torch

from sgl_spec.sglang_plugin.cpu_llama import FusedPass
from sgl_spec.sglang_plugin.passes import Span, StockPass
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

    rid: str
    pool_row: int  # the request's row in the draft's req_to_token
    read: int  # leading positions that the draft has read
    unread: list[int]  # the tokens after them: output, bonus token, guesses of other sources (never empty)
    count: int  # at least 1
    stop_below: float  # stop before the guess with which the product of confidences falls under it
    sampling: Sampling | None
    shift: int = 0  # from the draft's positions to the target's
    committed: int = 0  # positions whose KV the target has
    program: str = ""  # the request's key
    go_on: float = 0.0  # stop after the guess with which the product of confidences falls under this

    @property
    def end(self) -> int:
        """Position of the first drafted token."""
        return self.read + len(self.unread)


@dataclass(slots=True)
class Chains:
    """Drafted tokens per order, with each one's law, and what they cost."""

    tokens: list[list[int]]
    laws: list[list[torch.Tensor | None]]  # q [H] over the hot head's columns; None is a point mass
    hoped: list[float] = field(default_factory=list)  # per order, guesses that the draft's confidence promises
    catchup_ms: float = 0.0
    catchup_tokens: int = 0
    draft_ms: float = 0.0
    draft_steps: int = 0
    draft_rows: int = 0


def greedy_chains(forward: FusedPass, orders: list[ChainOrder], hot_ids: torch.Tensor | None) -> Chains:
    """Draft all chains in one call of the fused kernels: as `draft_chains` does it pass by pass for greedy orders."""
    started = time.perf_counter()
    spans = [Span(order.pool_row, order.read, order.unread) for order in orders]
    limits = [(order.count, order.stop_below, order.go_on) for order in orders]
    tokens, sure, first_s = forward.fused.greedy_chains(spans, forward.req_to_token, forward.head, limits, hot_ids)
    # A pass followed each guess but one that completed its chain, or with which the draft was too unsure to go on.
    steps = [
        len(said) - (bool(said) and (len(said) == order.count or math.prod(own) < order.go_on))
        for said, own, order in zip(tokens, sure, orders, strict=True)
    ]
    return Chains(
        tokens,
        [[None] * len(said) for said in tokens],
        [sum(accumulate(own, mul)) for own in sure],
        catchup_ms=first_s * 1e3,
        catchup_tokens=sum(len(span.tokens) for span in spans),
        draft_ms=(time.perf_counter() - started - first_s) * 1e3,
        draft_steps=max(steps),
        draft_rows=sum(steps),
    )


def draft_chains(
    forward: StockPass,
    orders: list[ChainOrder],
    hot_ids: torch.Tensor | None,
    generator: torch.Generator,
    fed: Mapping[int, int] | None = None,
) -> Chains:
    """Draft a chain for each order: one catch-up pass, then one pass per further token.

    `hot_ids` [H] are the tokens of the logits' columns; `fed` is what the draft reads for each, None: the same.
    """
    if isinstance(forward, FusedPass) and fed is None and all(order.sampling is None for order in orders):
        return greedy_chains(forward, orders, hot_ids)
    started = time.perf_counter()
    spans = [Span(order.pool_row, order.read, order.unread) for order in orders]
    logits = forward.logits(spans, every_row=False)
    chains = Chains([[] for _ in orders], [[] for _ in orders], [0.0] * len(orders))
    chains.catchup_tokens = sum(len(span.tokens) for span in spans)
    chains.catchup_ms = (time.perf_counter() - started) * 1e3
    live, survival = list(range(len(orders))), [1.0] * len(orders)
    while True:
        guesses = guess(
            logits,
            [orders[i].sampling for i in live],
            [orders[i].end + orders[i].shift + len(chains.tokens[i]) for i in live],
            hot_ids,
            generator,
        )
        going = []
        for at, i in enumerate(live):
            survival[i] *= guesses.confidences[at]
            if survival[i] < orders[i].stop_below:
                continue
            chains.tokens[i].append(guesses.tokens[at])
            chains.laws[i].append(guesses.laws[at])
            chains.hoped[i] += survival[i]
            if len(chains.tokens[i]) < orders[i].count and survival[i] >= orders[i].go_on:
                going.append(i)
        live = going
        if not live:
            break
        spans = []
        for i in live:
            last = chains.tokens[i][-1]
            position = orders[i].end + len(chains.tokens[i]) - 1
            spans.append(Span(orders[i].pool_row, position, [last if fed is None else fed[last]]))
        logits = forward.logits(spans, every_row=False)
        chains.draft_steps += 1
        chains.draft_rows += len(live)
    chains.draft_ms = (time.perf_counter() - started) * 1e3 - chains.catchup_ms
    return chains


DAMAGED = -1.0  # below every threshold


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
    token drawn: stopping on it leaves the emitted law exact. A row with a NaN or an infinity (a damaged draft)
    has the confidence -1, which ends its chain before the guess.
    """
    top, column = torch.softmax(logits, dim=-1).max(dim=-1)
    damaged = top.isnan()
    if damaged.any():
        logits = torch.where(damaged[:, None], 0.0, logits)
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
    for i in damaged.nonzero()[:, 0].tolist():
        guesses.confidences[i] = DAMAGED
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
