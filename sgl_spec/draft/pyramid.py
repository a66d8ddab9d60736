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

    Sample = Callable[[Tensor], Tensor]  # law [B, V] -> one token of each row [B]
    Accept = Callable[[Tensor, Tensor, Tensor, DraftLaw], tuple[Tensor, Tensor]]  # as accept_chain


class Level(Protocol):
    """A draft model. It keeps its own state (KV cache) and may assume that texts mostly grow."""

    def laws(self, texts: Sequence[Sequence[int]], guesses: Tensor, lens: Tensor) -> Tensor:
        """One pass: return the law after each text and each prefix of its guesses.

        texts: B token lists; guesses [B, K] int64 of which the first lens[i] count. Returns [B, K + 1, V],
        rows sum to 1, after the request's temperature and filters; rows past lens[i] are ignored.
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

    confidence: a run stops after the token at which its probability under the level that says it falls below
    this. sample, accept: replaceable, so that a test can enumerate every outcome; the defaults draw from
    `generator`.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        confidence: float = 0.0,
        generator: torch.Generator | None = None,
        sample: Sample | None = None,
        accept: Accept | None = None,
    ) -> None:
        self.stages = list(stages)
        self._confidence = confidence
        self._generator = generator
        self._sample: Sample = sample or self._draw
        self._accept: Accept = accept or self._verify

    def draft(
        self, texts: Sequence[Sequence[int]], limits: Sequence[int], active: Sequence[int] | None = None
    ) -> Run:
        """Return up to limits[i] tokens for each text, from the stages `active` (None: all, ascending)."""
        stages = [self.stages[i] for i in active] if active is not None else self.stages
        if not stages:
            raise ValueError("A pyramid without an active level cannot draft; verify nothing instead.")
        return self._collect(stages, [list(t) for t in texts], list(limits))

    def _collect(self, stages: Sequence[Stage], texts: list[list[int]], limits: list[int]) -> Run:
        """Let the last of `stages` say up to limits[i] tokens after each text."""
        stage = stages[-1]
        below = stages[:-1]
        said: list[list[int]] = [[] for _ in texts]
        laws: list[list[Tensor]] = [[] for _ in texts]
        survival = [1.0] * len(texts)
        open_ = [i for i, limit in enumerate(limits) if limit > 0]
        for _ in range(max(limits, default=0) if not below else stage.passes):
            if not open_:
                break
            now = [texts[i] + said[i] for i in open_]
            room = [limits[i] - len(said[i]) for i in open_]
            tokens, counts, probs = self._pass(stage, below, now, room)
            for row, i in enumerate(open_):
                for j in range(counts[row]):
                    token = tokens[row][j]
                    said[i].append(token)
                    laws[i].append(probs[row, j])
                    survival[i] *= float(probs[row, j, token])
            open_ = [i for i in open_ if len(said[i]) < limits[i] and survival[i] >= self._confidence]
        return _run(said, laws)

    def _pass(
        self, stage: Stage, below: Sequence[Stage], texts: list[list[int]], room: list[int]
    ) -> tuple[list[list[int]], list[int], Tensor]:
        """One pass of a level: rows of tokens, how many count in each, and the level's law [B, K + 1, V]."""
        import torch

        if not below:
            none = torch.zeros(len(texts), 0, dtype=torch.int64)
            probs = stage.level.laws(texts, none, torch.zeros(len(texts), dtype=torch.int64))
            return self._sample(probs[:, 0])[:, None].tolist(), [1] * len(texts), probs
        # The level adds a token of its own, so one less than there is room for is asked from below.
        run = self._collect(below, texts, [min(stage.width, r - 1) for r in room])
        probs = stage.level.laws(texts, run.tokens, run.lens)
        accepted, tokens = self._accept(probs, run.tokens, run.lens, run.law())
        return tokens.tolist(), (accepted + 1).tolist(), probs

    def _draw(self, law: Tensor) -> Tensor:
        import torch

        return torch.multinomial(law, 1, generator=self._generator)[:, 0]

    def _verify(self, p: Tensor, draft_tokens: Tensor, lens: Tensor, q: DraftLaw) -> tuple[Tensor, Tensor]:
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
