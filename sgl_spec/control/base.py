"""The contract of a controller: two verbs, `choose` how many tokens to draft and `observe` what came of it.

A round: the worker makes one `RequestView` per running request, asks `choose` for K_i, drafts (stopping
early where the product of draft probabilities falls under `confidence`), verifies, and reports one
`RoundRecord`. Controllers are deterministic given the observations: no clock, no random number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from sgl_spec.config import RequestOptions

MODEL = "model"  # the source name of tokens that the draft model proposed
DEFAULT_OPTIONS = RequestOptions()
Threshold = TypeVar("Threshold", float, float | None)


class Offer(NamedTuple):
    """A guess that a source other than the draft model holds ready for one next position."""

    source: str  # "cache", "prediction", ...
    acceptance: float  # the source's own estimate, given that all guesses before it are accepted


@dataclass(slots=True)
class RequestView:
    """What a controller may know of one running request before the round."""

    rid: str
    limit: int  # most drafts allowed now: tokens still to come - 1, draft context, caps; 0 = run plainly
    program: str = ""
    temperature: float = 0.0
    offers: Sequence[Offer] = ()  # for positions 1..len(offers), in order
    model: bool = True  # the draft model can continue after the offers
    pending: int = 1  # tokens that the draft model has not read yet (>= 1 with the bonus token)
    context: int = 0  # tokens before the next one: what a row attends to
    to_come: int | None = None  # most tokens that the request may still emit; None: not known
    options: RequestOptions = DEFAULT_OPTIONS


@dataclass(slots=True)
class RequestRound:
    """What happened to one request in a round."""

    rid: str
    proposed: int  # tokens really verified; below the chosen K after an early stop
    accepted: int  # 0 <= accepted <= proposed, the bonus token not counted
    sources: Sequence[str] = ()  # of each proposed token; empty means all by the draft model
    hoped: float = 0.0  # accepted guesses of the draft model that its own confidence promises; 0: not told


@dataclass(slots=True)
class RoundRecord:
    """What a round did and cost. All times in milliseconds, for the whole batch."""

    requests: Sequence[RequestRound]
    rows: int  # positions in the target's pass: batch size + all proposed tokens
    verify_ms: float  # the target's pass, plain decode included
    total_ms: float  # the whole round
    draft_ms: float = 0.0  # draft forwards after the catch-up
    draft_steps: int = 0  # number of those forwards
    draft_rows: int = 0  # sum of their batch sizes
    catchup_ms: float = 0.0  # the first draft forward, over the tokens it has not read yet
    catchup_tokens: int = 0  # its positions; 0 = no such forward
    context: int = 0  # sum of the requests' lengths in tokens
    guess_context: int = 0  # the same, counted once for each of their guesses

    @property
    def batch(self) -> int:
        """Number of requests in the round."""
        return len(self.requests)


class Controller(Protocol):
    """Sets K_i. Implementations: fixed, threshold, ema, bandit, throughput."""

    name: str

    def choose(self, views: Sequence[RequestView]) -> list[int]:
        """K_i per request, 0 <= K_i <= views[i].limit; remembers the rids."""
        ...

    def confidence(self, view: RequestView) -> float:
        """A guess is not made when the product of the draft's largest probabilities up to it is below this.

        The worker must decide before it draws a guess (from the draft's logits, never from the drawn token):
        dropping drawn guesses by their probability changes the output's law.
        """
        ...

    def go_on(self, view: RequestView) -> float:
        """After a guess, the draft model runs for another one only if that product is at least this.

        At least `confidence`: a guess that is there costs a row of the target's pass, the next one a draft forward
        as well.
        """
        ...

    def observe(self, record: RoundRecord) -> None:
        """Learn from a finished round. Rids that `choose` never saw are ignored."""
        ...

    def forget(self, rid: str) -> None:
        """The request ended; unknown rids are ignored."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Counters and current estimates for statistics and logs, JSON-ready."""
        ...


def confidence_of(view: RequestView, server: Threshold) -> float | Threshold:
    """The request's own `draft_confidence`, else the server's."""
    own = view.options.draft_confidence
    return server if own is None else own


class OneThreshold:
    """Early stop by one threshold for a guess and for going on after it."""

    __slots__ = ()
    draft_confidence: float

    def confidence(self, view: RequestView) -> float:
        """See `confidence_of`."""
        return confidence_of(view, self.draft_confidence)

    def go_on(self, view: RequestView) -> float:
        """The same."""
        return self.confidence(view)


@dataclass(slots=True)
class StepPolicy(OneThreshold):
    """Base of the policies that look at one request alone: they keep one K per request."""

    initial: int
    k_max: int
    draft_confidence: float = 0.0
    current: dict[str, int] = field(default_factory=dict)

    name = "fixed"

    def choose(self, views: Sequence[RequestView]) -> list[int]:
        """The request's own K, cut to what it may draft now."""
        chosen = []
        for view in views:
            k = self.current.setdefault(view.rid, self.initial)
            chosen.append(capped(k, view, self.k_max))
        return chosen

    def observe(self, record: RoundRecord) -> None:
        """Hand each request's outcome to `update`."""
        for outcome in record.requests:
            k = self.current.get(outcome.rid)
            if k is not None:
                self.current[outcome.rid] = self.update(k, outcome)

    def update(self, k: int, outcome: RequestRound) -> int:  # noqa: ARG002 - the signature of subclasses
        """The request's K after this outcome."""
        return k

    def forget(self, rid: str) -> None:
        """Drop the request's state."""
        self.current.pop(rid, None)

    def snapshot(self) -> dict[str, Any]:
        """The K of each running request."""
        return {"controller": self.name, "k": dict(self.current)}


def capped(k: int, view: RequestView, k_max: int) -> int:
    """`k` within the limits of the server, the request's options and this round."""
    options = view.options
    if not options.speculate:
        return 0
    top = view.limit if view.model else min(view.limit, len(view.offers))
    if options.num_speculative_tokens is not None:
        top = min(top, options.num_speculative_tokens)
    return max(0, min(k, top, k_max))
