"""START HERE. One round of speculative decoding, one request, no engine: draft, verify, commit, observe.

The same functions of `control/` and `verify/` run inside SGLang for a whole batch; this page is their
reference, and the oracle of their tests. p is the target's law, q the draft's (Leviathan et al. 2023).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sgl_spec.config import RequestOptions
from sgl_spec.control.base import MODEL, Controller, Offer, RequestRound, RequestView, RoundRecord
from sgl_spec.stats import RequestStats
from sgl_spec.verify.accept import Coins, DraftLaw, accept_chain, accept_greedy
from sgl_spec.verify.processors import Filters, Penalties, Rows, adjust_logits, target_probs
from sgl_spec.verify.seeded import seeded_tokens

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TargetLogits = Callable[[Sequence[int], int], "Tensor"]  # (tokens, n): [n + 1, V], after the last n + 1 ids
DraftLogits = Callable[[Sequence[int]], "Tensor"]  # tokens: [V], after the last id
Offers = Callable[[Sequence[int]], Sequence[tuple[int, Offer]]]  # tokens: guesses without a draft forward


@dataclass(slots=True)
class Request:
    """One text in the making, and how its tokens are to be drawn."""

    tokens: list[int]
    max_new_tokens: int
    temperature: float = 0.0  # 0: greedy
    top_k: int = 1 << 30
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    penalties: Penalties = field(default_factory=Penalties)
    stop_ids: frozenset[int] = frozenset()
    options: RequestOptions = field(default_factory=lambda: RequestOptions.parse({}))
    rid: str = "0"
    emitted: int = 0
    finished: bool = False
    stats: RequestStats = field(default_factory=RequestStats)

    def law(self, logits: Tensor, drafts: Sequence[int]) -> Tensor:
        """p (or q) for rows [n, V]; row j follows the first j of `drafts`. Greedy rows are one-hot."""
        import torch

        rows = Rows([0], [len(drafts)], [drafts])
        logits = adjust_logits(logits.clone(), rows, [self.penalties])
        greedy = self.temperature == 0.0 or self.top_k <= 1
        each = torch.ones(len(logits), dtype=logits.dtype, device=logits.device)
        filters = Filters(
            each * (1.0 if greedy else self.temperature), each * (1 if greedy else self.top_k),
            each * self.top_p, each * self.min_p, any_greedy=greedy,
        )  # fmt: skip
        return target_probs(logits, filters)


def generate(
    request: Request,
    target_logits: TargetLogits,
    draft_logits: DraftLogits | None,
    controller: Controller,
    *,
    offers: Offers | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[list[int]]:
    """Run rounds until the request ends; yields the tokens of each."""
    while not request.finished:
        yield step(request, target_logits, draft_logits, controller, offers=offers, generator=generator)


def step(
    request: Request,
    target_logits: TargetLogits,
    draft_logits: DraftLogits | None,
    controller: Controller,
    *,
    offers: Offers | None = None,
    generator: torch.Generator | None = None,
) -> list[int]:
    """One round; returns the emitted tokens, one at least."""
    began = time.perf_counter()
    ready = list(offers(request.tokens)) if offers else []
    view = RequestView(
        request.rid,
        limit=request.max_new_tokens - request.emitted - 1,
        program=request.options.program,
        temperature=request.temperature,
        offers=[offer for _, offer in ready],
        model=draft_logits is not None,
        context=len(request.tokens),
        options=request.options,
    )
    k = controller.choose([view])[0]
    stops = controller.confidence(view), controller.go_on(view)
    guesses, q, sources = draft(request, ready[:k], k, draft_logits, stops=stops, generator=generator)
    drafted = time.perf_counter()
    p = request.law(target_logits(request.tokens + guesses, len(guesses)), guesses)
    accepted, emitted = verify(request, p, guesses, q, generator)
    verified = time.perf_counter()
    emitted = commit(request, emitted)
    outcome = RequestRound(request.rid, len(guesses), accepted, sources)
    request.stats.add(outcome)
    steps = sources.count(MODEL)
    controller.observe(
        RoundRecord(
            [outcome], 1 + len(guesses), 1e3 * (verified - drafted), 1e3 * (time.perf_counter() - began),
            draft_ms=1e3 * (drafted - began), draft_steps=steps, draft_rows=steps,
            context=view.context, guess_context=len(guesses) * view.context,
        )
    )  # fmt: skip
    if request.finished:
        controller.forget(request.rid)
    return emitted


def draft(
    request: Request,
    ready: Sequence[tuple[int, Offer]],
    k: int,
    draft_logits: DraftLogits | None,
    *,
    stops: tuple[float, float] = (0.0, 0.0),
    generator: torch.Generator | None = None,
) -> tuple[list[int], DraftLaw, list[str]]:
    """At most k guesses: what is ready, then the draft model until it is unsure.

    Unsure: the product of the draft's largest probabilities falls under `stops`, the first before a guess is
    made, the second after it, before the draft runs again. The decisions are made before a guess is drawn. To
    draw first and drop guesses of small probability would leave the kept ones with another law than q, and the
    output with another law than p.
    Returns the guesses, their q (guesses that were ready are point masses) and their sources.
    """
    import torch

    guesses = [token for token, _ in ready]
    sources = [offer.source for _, offer in ready]
    laws: list[Tensor] = []
    survival = 1.0
    while len(guesses) < k and draft_logits is not None:
        # The last row's history is the text with the guesses so far, as at the target.
        logits = draft_logits(request.tokens + guesses)
        survival *= float(logits.softmax(dim=-1).max())
        if survival < stops[0]:
            break
        law = request.law(logits.expand(len(guesses) + 1, -1), guesses)[-1]
        if request.seed is None:
            token = int(torch.multinomial(law.double(), 1, generator=generator))
        else:
            position = torch.tensor([len(request.tokens) + len(guesses) - 1])
            token = int(seeded_tokens(law[None], torch.tensor([request.seed]), position))
        guesses.append(token)
        sources.append(MODEL)
        laws.append(law)
        if survival < stops[1]:
            break
    if not laws:
        return guesses, DraftLaw(), sources
    probs = torch.stack([torch.zeros_like(laws[0])] * len(ready) + laws)
    point = torch.arange(len(guesses)) < len(ready)
    return guesses, DraftLaw(probs[None], point=point[None]), sources


def verify(
    request: Request, p: Tensor, guesses: list[int], q: DraftLaw, generator: torch.Generator | None = None
) -> tuple[int, list[int]]:
    """How many guesses survive, and the tokens that the round emits: those and one more."""
    import torch

    chain, lens = torch.tensor([guesses], dtype=torch.int64), torch.tensor([len(guesses)])
    if request.seed is not None:
        positions = torch.arange(len(p)) + len(request.tokens) - 1
        own = seeded_tokens(p, torch.full_like(positions, request.seed), positions)
        accepted, tokens = accept_greedy(chain, lens, own[None])
    else:
        drawn = torch.rand(1, len(guesses) + 1, dtype=torch.float64, generator=generator)
        accepted, tokens = accept_chain(p[None], chain, lens, q, coins=Coins(drawn[:, :-1], drawn[:, -1]))
    count = int(accepted)
    return count, tokens[0, : count + 1].tolist()


def commit(request: Request, emitted: list[int]) -> list[int]:
    """Append the tokens up to the end of the request, if it is among them."""
    stop = next((at for at, token in enumerate(emitted) if token in request.stop_ids), None)
    if stop is not None:
        emitted = emitted[: stop + 1]
    request.tokens += emitted
    request.penalties.add(emitted)
    request.emitted += len(emitted)
    request.finished = stop is not None or request.emitted >= request.max_new_tokens
    return emitted
