"""The contract of host-side draft sources: those that guess tokens without a model forward.

A source guesses what the target will say next from text that it has already seen. One round is

    proposal = source.draft(rid, limit)     # up to `limit` guesses, each with an estimate
    ...the target verifies as many of them as pay...
    source.accept(rid, emitted)             # accepted guesses and the bonus token

Law: a guess of a host source is a point mass (q = 1 on one token), so verification accepts it with
probability p(token) and otherwise samples from p without it, renormalised (Leviathan et al. 2023, alg. 1
with a one-hot q). Whatever a source proposes, the emitted law is the target's; a bad source only costs
time.

Estimates: `acceptance[i]` is the chance that token i is accepted **given that all earlier ones were**, the
a_1..a_K of the controller. Because a point mass is accepted with probability p(token), and the target emits
the token with that same probability, a source may score each guess by comparing it with the tokens that
were emitted, also when it was never sent to verification. Estimates stay honest at K = 0 that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

CACHE, PROMPT, PREDICTION = "cache", "prompt", "prediction"
SOURCE_NAMES = (PREDICTION, PROMPT, CACHE)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a request says about its host-side sources; defaults are those of an ordinary request."""

    namespace: str = ""  # tenant: text is shared within a namespace and never across
    program: str = ""  # program key: text of the same program is preferred
    cache: bool = True  # False: neither reads the shared text nor leaves any in it
    prompt_lookup: bool = True  # False: the request's own prompt and output are not searched
    prediction: tuple[int, ...] = ()  # token ids of the expected output
    temperature: float = 0.0  # only chooses which acceptance statistics apply


@dataclass(slots=True)
class Proposal:
    """Guesses for the next positions of one request; all three lists have the same length."""

    tokens: list[int] = field(default_factory=list)
    acceptance: list[float] = field(default_factory=list)  # conditional, in [0, 1]
    sources: list[str] = field(default_factory=list)  # one of SOURCE_NAMES for each token
    q: None = None  # a point mass on each token

    def __len__(self) -> int:
        return len(self.tokens)

    def expected_accepted(self) -> float:
        """Return a_1 + a_1 a_2 + ...: accepted tokens per verify, without the bonus token."""
        total, survival = 0.0, 1.0
        for a in self.acceptance:
            survival *= a
            total += survival
        return total

    def survival(self) -> float:
        """Return the chance that every token is accepted."""
        return prod(self.acceptance)


@dataclass(slots=True)
class SourceCount:
    """Tokens of one source that went into verification, and how many were accepted."""

    proposed: int = 0
    accepted: int = 0


class HostSource(Protocol):
    """Four verbs. `rid` names a live request; an unknown or repeated one raises SpecError."""

    def begin(self, rid: str, context_ids: Sequence[int], options: SourceOptions) -> None:
        """Start a request whose text so far (prompt, and output if any) is `context_ids`."""

    def draft(self, rid: str, limit: int, prefix: Sequence[int] = ()) -> Proposal:
        """Guess up to `limit` tokens that follow the request's text plus the hypothetical `prefix`.

        A call without prefix starts a new round: guesses that were not accepted until then are dropped.
        """

    def accept(self, rid: str, tokens: Sequence[int]) -> None:
        """Append the emitted `tokens` (accepted guesses and the bonus token); score this round's guesses."""

    def end(self, rid: str) -> None:
        """Forget the request. Text that it left in shared indexes stays."""
