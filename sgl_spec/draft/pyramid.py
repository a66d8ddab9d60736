"""Several draft models from tiny to small: each verifies the one below it and hands its own law upwards.

The lowest level samples token by token. A level above asks the one below for `width` tokens, checks them in
one pass with the rule of verify/accept.py, and repeats until it has what was asked of it or has made `passes`
passes. Spector and Re 2023 (staged speculative decoding) describe the stack.

Invariant: given a request's text and the tokens collected so far, the next token that a level hands up has
exactly that level's law, which is handed up with it. Accepted or replaced, each token of a pass has that law
(Leviathan et al. 2023, theorem 1), and the next pass draws afresh. So the law handed up is a valid q, and the
target's verification stays exact whatever the levels below do.
What would break it: to drop a token because of its value. Lengths are cut by count, and a run that becomes
unlikely stops *after* the token that made it so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sgl_spec.verify.accept import DraftLaw, accept_chain

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Sample = Callable[[Tensor, "Where"], Tensor]  # law [B, V] -> one token of each row [B]
    # (law of the level [B, K + 1, V], tokens [B, K], lens [B], law of the level below) -> as accept_chain
    Accept = Callable[[Tensor, Tensor, Tensor, DraftLaw, "Where"], tuple[Tensor, Tensor]]
    # (lower level, upper level, requests, accepted guesses of each, guesses of each)
    Watch = Callable[[int, int, Sequence[int], list[int], list[int]], None]


@dataclass(frozen=True, slots=True)
class Where:
    """Which requests the rows of a batch are, and the position of each one's first new token."""

    rows: Sequence[int]
    positions: Sequence[int]


class Level(Protocol):
    """A draft model. It keeps its own state (KV cache) and may assume that texts mostly grow."""

    def laws(self, rows: Sequence[int], texts: Sequence[Sequence[int]], guesses: Tensor, lens: Tensor) -> Tensor:
        """One pass: return the law after each text and each prefix of its guesses.

        rows: which requests of the draft these are; texts: B token lists; guesses [B, K] int64 of which the first
        lens[i] count. Returns [B, K + 1, V], rows sum to 1, after the request's temperature and filters; what is
        past lens[i] is ignored.
        """


@dataclass(frozen=True, slots=True)
class Stage:
    """A level and how it is used."""

    level: Level
    width: int = 4  # tokens asked from the level below per pass; unused at the bottom
    passes: int = 1  # at most so many passes per draft; unused at the bottom


@dataclass(frozen=True, slots=True)
class Run:
    """Drafted tokens of B requests: tokens [B, K], lens[i] of them count; probs [B, K, V] is their q."""

    tokens: Tensor
    lens: Tensor
    probs: Tensor

    def law(self) -> DraftLaw:
        """Return q in the form that verification takes."""
        return DraftLaw(probs=self.probs)


class Pyramid:
    """Drafts with `stages` from the tiniest to the largest draft model.

    sample, accept: how tokens are drawn and judged (greedy and seeded requests, tests that enumerate every
    outcome); the defaults draw from `generator`. watch: hears how well two neighbouring levels agree.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        generator: torch.Generator | None = None,
        sample: Sample | None = None,
        accept: Accept | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.stages = list(stages)
        self._generator = generator
        self._sample: Sample = sample or self._draw
        self._accept: Accept = accept or self._verify
        self._watch = watch

    def draft(
        self,
        texts: Sequence[Sequence[int]],
        limits: Sequence[int],
        active: Sequence[int] | None = None,
        confidence: Sequence[float] | None = None,
    ) -> Run:
        """Return up to limits[i] tokens for each text, from the stages `active` (None: all, ascending).

        A run of request i stops after the token at which its probability under the level that says it falls
        below confidence[i].
        """
        levels = list(range(len(self.stages))) if active is None else list(active)
        if not levels:
            raise ValueError("A pyramid without an active level cannot draft; verify nothing instead.")
        stop = [0.0] * len(texts) if confidence is None else list(confidence)
        return self._collect(levels, list(range(len(texts))), [list(t) for t in texts], list(limits), stop)

    def _collect(
        self, levels: list[int], rows: list[int], texts: list[list[int]], limits: list[int], stop: list[float]
    ) -> Run:
        """Let the last of `levels` say up to limits[i] tokens after each text."""
        stage = self.stages[levels[-1]]
        said: list[list[int]] = [[] for _ in texts]
        laws: list[list[Tensor]] = [[] for _ in texts]
        survival = [1.0] * len(texts)
        open_ = [i for i, limit in enumerate(limits) if limit > 0]
        for _ in range(max(limits, default=0) if len(levels) == 1 else stage.passes):
            if not open_:
                break
            now = [texts[i] + said[i] for i in open_]
            room = [limits[i] - len(said[i]) for i in open_]
            tokens, counts, probs = self._pass(levels, [rows[i] for i in open_], now, room, [stop[i] for i in open_])
            for row, i in enumerate(open_):
                for j in range(counts[row]):
                    token = tokens[row][j]
                    said[i].append(token)
                    laws[i].append(probs[row, j])
                    survival[i] *= float(probs[row, j, token])
            open_ = [i for i in open_ if len(said[i]) < limits[i] and survival[i] >= stop[i]]
        return _run(said, laws)

    def _pass(
        self, levels: list[int], rows: list[int], texts: list[list[int]], room: list[int], stop: list[float]
    ) -> tuple[list[list[int]], list[int], Tensor]:
        """One pass of the last level: rows of tokens, how many count in each, and its law [B, K + 1, V]."""
        import torch

        stage, below = self.stages[levels[-1]], levels[:-1]
        where = Where(rows, [len(text) for text in texts])
        if not below:
            none = torch.zeros(len(texts), 0, dtype=torch.int64)
            probs = stage.level.laws(rows, texts, none, torch.zeros(len(texts), dtype=torch.int64))
            return self._sample(probs[:, 0], where)[:, None].tolist(), [1] * len(texts), probs
        # The level adds a token of its own, so one less than there is room for is asked from below.
        run = self._collect(below, rows, texts, [min(stage.width, r - 1) for r in room], stop)
        probs = stage.level.laws(rows, texts, run.tokens, run.lens)
        accepted, tokens = self._accept(probs, run.tokens, run.lens, run.law(), where)
        if self._watch is not None:
            self._watch(below[-1], levels[-1], rows, accepted.tolist(), run.lens.tolist())
        return tokens.tolist(), (accepted + 1).tolist(), probs

    def _draw(self, law: Tensor, where: Where) -> Tensor:  # noqa: ARG002 - the signature of Sample
        import torch

        return torch.multinomial(law, 1, generator=self._generator)[:, 0]

    def _verify(
        self,
        p: Tensor,
        draft_tokens: Tensor,
        lens: Tensor,
        q: DraftLaw,
        where: Where,  # noqa: ARG002 - the signature of Accept
    ) -> tuple[Tensor, Tensor]:
        return accept_chain(p, draft_tokens, lens, q, generator=self._generator)


def _run(said: list[list[int]], laws: list[list[Tensor]]) -> Run:
    """Pad the collected tokens and laws to one rectangle."""
    import torch

    width = max(map(len, said), default=0)
    tokens = torch.zeros(len(said), width, dtype=torch.int64)
    flat = [law for row in laws for law in row]
    size = flat[0].shape[-1] if flat else 1
    probs = torch.zeros(len(said), width, size, dtype=flat[0].dtype if flat else torch.float32)
    for i, row in enumerate(said):
        if row:
            tokens[i, : len(row)] = torch.tensor(row)
            probs[i, : len(row)] = torch.stack(laws[i])
    return Run(tokens, torch.tensor([len(row) for row in said], dtype=torch.int64), probs)
