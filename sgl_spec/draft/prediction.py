"""Guesses from a text that the user expects as the output (OpenAI's `prediction`), followed by a pointer.

While the emitted tokens equal the prediction, the pointer moves along. When they differ it is lost, and finds
itself again as soon as the last tokens occur in the prediction: MIN_MATCH tokens within WINDOW tokens after
the place where it was lost, or ANYWHERE tokens at another place near it. So an insertion, a deletion or a
rewritten line costs a few plain tokens. While it is lost nothing is proposed, and the cost is one dictionary
look-up per emitted token.

Usage, as OpenAI defines it for chat completions: `accepted_prediction_tokens` counts the tokens of the
prediction that appeared in the completion, here: that the pointer expected and that were then emitted, each
once, whether or not they were sent to verification; `rejected_prediction_tokens` counts its other tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sgl_spec.draft.base import PREDICTION, Proposal, SourceOptions
from sgl_spec.draft.calibration import MAX_KEYS, Calibration, Cells
from sgl_spec.errors import SpecError

MIN_MATCH = 2
ANYWHERE = 4
WINDOW = 96  # tokens ahead of the place of divergence
NEAREST = 8  # places looked at on each side
LONGEST = 16  # a match is measured up to this length

# Cells: START is the untried beginning, then by how many tokens matched up to the pointer.
START = -1
FIRST = 4  # the first token of the output is right: as good as this many matched tokens
_LEAST_RUN = (0, 3, 4, 6, 9, 17)
_PRIOR = (0.8, 0.5, 0.6, 0.75, 0.85, 0.92, 0.96)
_CELL = tuple(1 + sum(run >= least for least in _LEAST_RUN[1:]) for run in range(_LEAST_RUN[-1] + 1))


def _cell(run: int) -> int:
    return 0 if run == START else _CELL[min(run, _LEAST_RUN[-1])]


def _ahead(run: int, i: int) -> int:
    """Return the run after `i` more right tokens."""
    return run + i if run != START or i == 0 else FIRST + i - 1


class _Pointer:
    """Where in the prediction the output is: `at` is the index expected next, None while lost."""

    __slots__ = ("at", "lost_at", "run")

    def __init__(self, at: int | None = 0, run: int = START, lost_at: int = 0) -> None:
        self.at, self.run, self.lost_at = at, run, lost_at


class _Text:
    """A prediction that can be searched by its bigrams; the table is built at the first divergence."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self._after: dict[tuple[int, int], list[int]] | None = None

    def move(self, pointer: _Pointer, tokens: Sequence[int], recent: list[int]) -> list[int]:
        """Move the pointer over emitted `tokens`; return the indices that it had expected rightly.

        recent: the tokens before, at least the last LONGEST ones if so many exist; `tokens` are appended.
        """
        hits = []
        text = self.tokens
        for t in tokens:
            recent.append(t)
            at = pointer.at
            if at is not None and at < len(text) and text[at] == t:
                hits.append(at)
                pointer.at = at + 1
                pointer.run = FIRST if pointer.run == START else pointer.run + 1
                continue
            if at is not None:
                pointer.lost_at = at
            pointer.at, pointer.run = self._locate(recent, pointer.lost_at)
        return hits

    def _locate(self, recent: list[int], lost_at: int) -> tuple[int | None, int]:
        """Return the index after the place that continues `recent` best, and the length of the match."""
        if len(recent) < MIN_MATCH:
            return None, 0
        if self._after is None:
            self._after = {}
            for i, pair in enumerate(pairwise(self.tokens)):
                self._after.setdefault(pair, []).append(i + 2)
        places = self._after.get((recent[-2], recent[-1]))
        if not places:
            return None, 0
        best, best_rank = None, (0, 0)
        middle = bisect_left(places, lost_at)
        for at in places[max(0, middle - NEAREST) : middle + NEAREST]:
            length = self._match(recent, at)
            near = 0 <= at - lost_at <= WINDOW
            if length >= (MIN_MATCH if near else ANYWHERE):
                rank = (length, -abs(at - lost_at))
                if best is None or rank > best_rank:
                    best, best_rank = at, rank
        return best, best_rank[0]

    def _match(self, recent: list[int], at: int) -> int:
        """Return how many tokens before `at` equal the end of `recent`, at most LONGEST."""
        most = min(LONGEST, at, len(recent))
        n = MIN_MATCH
        while n < most and self.tokens[at - 1 - n] == recent[-1 - n]:
            n += 1
        return n


@dataclass(slots=True)
class _Request:
    text: _Text
    cells: Cells
    recent: list[int]
    pointer: _Pointer = field(default_factory=_Pointer)
    matched: bytearray = field(default_factory=bytearray)  # 1 for each token that was expected and emitted
    guess: list[tuple[list[int], list[int], list[int]]] = field(default_factory=list)  # prefix, tokens, cells


@dataclass(frozen=True, slots=True)
class PredictionUsage:
    """What `usage.completion_tokens_details` reports."""

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class PredictionSource:
    """The host source "prediction"; requests without a prediction pass through it unseen."""

    def __init__(self) -> None:
        self._requests: dict[str, _Request] = {}
        self._calibration: OrderedDict[str, Calibration] = OrderedDict()

    def __contains__(self, rid: str) -> bool:
        return rid in self._requests

    def begin(self, rid: str, context_ids: Sequence[int], options: SourceOptions) -> None:
        """Start a request; its output is expected to follow `options.prediction` from the beginning."""
        del context_ids  # only the output follows the prediction
        if not options.prediction:
            return
        if rid in self._requests:
            raise SpecError(f"Request {rid!r} has begun already; end it before it begins again.")
        space = self._calibration.setdefault(options.namespace, Calibration(_PRIOR))
        self._calibration.move_to_end(options.namespace)
        if len(self._calibration) > MAX_KEYS:
            self._calibration.popitem(last=False)
        self._requests[rid] = _Request(
            text=_Text(options.prediction),
            cells=Cells(space.cells(options.program, options.temperature)),
            recent=[],
            matched=bytearray(len(options.prediction)),
        )

    def draft(self, rid: str, limit: int, prefix: Sequence[int] = ()) -> Proposal:
        """Return the next tokens of the prediction, nothing while the pointer is lost."""
        proposal = Proposal()
        request = self._requests.get(rid)
        if request is None:
            return proposal
        if not prefix:
            request.guess.clear()
        pointer, text = request.pointer, request.text
        if prefix:
            pointer = _Pointer(pointer.at, pointer.run, pointer.lost_at)
            text.move(pointer, prefix, request.recent[-LONGEST:])
        if pointer.at is None or limit <= 0:
            return proposal
        tokens = text.tokens[pointer.at : pointer.at + limit]
        cells = [_cell(_ahead(pointer.run, i)) for i in range(len(tokens))]
        proposal.tokens, proposal.sources = tokens, [PREDICTION] * len(tokens)
        proposal.acceptance = [request.cells.estimate[c] for c in cells]
        request.guess.append((list(prefix), tokens, cells))
        return proposal

    def accept(self, rid: str, tokens: Sequence[int]) -> None:
        """Move the pointer over the emitted tokens and score this round's guesses."""
        request = self._requests.get(rid)
        if request is None:
            return
        for prefix, guessed, cells in request.guess:
            if list(tokens[: len(prefix)]) != prefix:
                continue
            for guess, cell, emitted in zip(guessed, cells, tokens[len(prefix) :], strict=False):
                request.cells.observe(cell, guess == emitted)
                if guess != emitted:
                    break
        request.guess.clear()
        for i in request.text.move(request.pointer, tokens, request.recent):
            request.matched[i] = 1
        del request.recent[:-LONGEST]

    def usage(self, rid: str) -> PredictionUsage:
        """Return what the request's usage reports so far; zeros for a request without a prediction."""
        request = self._requests.get(rid)
        if request is None:
            return PredictionUsage()
        accepted = sum(request.matched)
        return PredictionUsage(accepted, len(request.matched) - accepted)

    def end(self, rid: str) -> None:
        """Forget the request."""
        self._requests.pop(rid, None)
