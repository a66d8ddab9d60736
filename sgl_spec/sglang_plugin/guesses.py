"""A round's guesses: the host's first, the draft model's after them, and what the draft has read by then."""

from dataclasses import dataclass
from typing import Any

import torch

from sgl_spec.config import SpecConfig
from sgl_spec.control.base import MODEL, Controller, RequestView
from sgl_spec.sglang_plugin.chains import ChainOrder, Chains, draft_sampling
from sgl_spec.sglang_plugin.draft_model import NoDraftModel
from sgl_spec.sglang_plugin.drafters import Drafter
from sgl_spec.sglang_plugin.passes import Held, Span
from sgl_spec.sglang_plugin.requests import Track


@dataclass(slots=True)
class Guessed:
    """What one request sends into verification."""

    tokens: list[int]
    laws: list[torch.Tensor | None]  # q of each token over `hot_ids`; None is a point mass
    sources: list[str]
    hoped: float = 0.0  # how many of the draft model's are right, by its own confidence; 0: not told


class Guesser:
    """Fills each request's K_i guesses, and keeps `Track.read` true: what the draft model has read."""

    def __init__(self, config: SpecConfig, controller: Controller, draft_model: Drafter | NoDraftModel) -> None:
        self.config, self.controller, self.draft_model = config, controller, draft_model

    def guess(
        self,
        reqs: list[Any],
        tracks: list[Track],
        views: list[RequestView],
        chosen: list[int],
        ends: list[int],
        generator: torch.Generator,
    ) -> tuple[list[Guessed], Chains | None]:
        """Take each request's first K_i guesses; `ends` are the committed lengths n_i.

        Chains are what the draft model was asked for, None if it was not.
        """
        guessed, orders, owners = [], [], []
        for i, (known, view, k) in enumerate(zip(tracks, views, chosen, strict=True)):
            host = min(k, len(known.offer))
            guessed.append(Guessed(known.offer.tokens[:host], [None] * host, known.offer.sources[:host]))
            known.verified = host
            count = min(k, self.draft_model.context_length - ends[i]) - host  # it reads the bonus token, not its last
            if count > 0 and view.model:
                orders.append(self._order(reqs[i], known, view, ends[i], guessed[i].tokens, count))
                owners.append(i)
        if not orders:
            return guessed, None
        assert not isinstance(self.draft_model, NoDraftModel)  # without one, no view says model=True
        chains = self.draft_model.chains(orders, generator)
        for at, i in enumerate(owners):
            guessed[i].tokens += chains.tokens[at]
            guessed[i].laws += chains.laws[at]
            guessed[i].sources += [MODEL] * len(chains.tokens[at])
            guessed[i].hoped = chains.hoped[at] if chains.hoped else 0.0
            tracks[i].drafting = True
        return guessed, chains

    def _order(self, req: Any, known: Track, view: RequestView, end: int, guesses: list[int], count: int) -> ChainOrder:
        assert known.read is not None
        read = 0 if self.draft_model.reads_own_text else known.read
        return ChainOrder(
            rid=known.rid,
            pool_row=req.kv.req_pool_idx,
            read=read,
            unread=text(req, read, end) + guesses,
            count=count,
            stop_below=self.controller.confidence(view),
            go_on=self.controller.go_on(view),
            sampling=draft_sampling(known.sampling, self.config.draft_temperature),
            committed=end,
            program=known.options.program,
        )

    def settle(
        self, spans: list[Span], held: Held, tracks: list[Track], guessed: list[Guessed], accepted: list[int]
    ) -> None:
        """Note which positions the draft has now read: those it wrote whose tokens were committed.

        The target verified the `spans`, whose slots are `held`.
        """
        for span in spans:
            self.draft_model.forget(held(span.pool_row, span.start, span.start + len(span.tokens)))
        for span, known, g, right in zip(spans, tracks, guessed, accepted, strict=True):
            if known.drafting and known.read is not None and not isinstance(self.draft_model, NoDraftModel):
                known.read = self.draft_model.commit(span.pool_row, known.read, span.start, g.tokens, right)
                known.drafting = False


def text(req: Any, start: int, n: int) -> list[int]:
    """Return the request's tokens at positions [start, n]."""
    prompt = len(req.origin_input_ids)
    head = list(req.origin_input_ids[start:]) if start < prompt else []
    return head + list(req.output_ids[max(start - prompt, 0) : n + 1 - prompt])
