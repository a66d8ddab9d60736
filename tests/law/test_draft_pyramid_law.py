"""A pyramid emits the target's law: every random outcome is enumerated with its exact probability."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from sgl_spec.draft.pyramid import Pyramid, Run, Stage, Where
from sgl_spec.verify.accept import Coins, DraftLaw, accept_chain, accept_greedy

TEXT = [0]


class Toy:
    """A model over V tokens whose law depends on the last two."""

    def __init__(self, seed: int, vocabulary: int, kind: str = "soft") -> None:
        generator = torch.Generator().manual_seed(seed)
        table = torch.rand(vocabulary, vocabulary, vocabulary, generator=generator, dtype=torch.float64) ** 2
        if kind == "cut":  # as after top-p: some tokens have probability 0
            table = table * (torch.rand(table.shape, generator=generator) < 0.6)
            table[..., 0] += 1e-3
        if kind == "one-hot":
            table = torch.nn.functional.one_hot(table.argmax(-1), vocabulary).double()
        self.table = table / table.sum(-1, keepdim=True)
        self.passes = 0

    def law(self, text: Sequence[int]) -> Tensor:
        a, b = ([0, 0, *text])[-2:]
        return self.table[a, b]

    def laws(self, rows: Sequence[int], texts: Sequence[Sequence[int]], guesses: Tensor, lens: Tensor) -> Tensor:
        self.passes += 1
        columns = range(guesses.shape[1] + 1)
        return torch.stack(
            [
                torch.stack([self.law([*text, *row[: min(j, n)]]) for j in columns])
                for text, row, n in zip(texts, guesses.tolist(), lens.tolist(), strict=True)
            ]
        )


class Fate:
    """Makes every choice once: a script of choices is replayed, then extended by first choices."""

    def __init__(self) -> None:
        self.script: list[tuple[int, list[tuple[int, float]]]] = []
        self.at, self.probability = 0, 1.0

    def pick(self, weights: Sequence[float]) -> int:
        options = [(i, float(w)) for i, w in enumerate(weights) if w > 0]
        if self.at == len(self.script):
            self.script.append((0, options))
        chosen, options = self.script[self.at]
        self.at += 1
        index, weight = options[chosen]
        self.probability *= weight
        return index

    def outcomes(self, round_: Callable[[], tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], float]]:
        while True:
            self.at, self.probability = 0, 1.0
            outcome = round_()
            yield outcome, self.probability
            while self.script and self.script[-1][0] + 1 == len(self.script[-1][1]):
                self.script.pop()
            if not self.script:
                return
            chosen, options = self.script[-1]
            self.script[-1] = chosen + 1, options

    def sample(self, law: Tensor, where: Where) -> Tensor:
        return torch.tensor([self.pick(row.tolist()) for row in law])

    def accept(
        self, p: Tensor, tokens: Tensor, lens: Tensor, q: DraftLaw, where: Where | None = None
    ) -> tuple[Tensor, Tensor]:
        """accept_chain at coins in the middle of the region that each choice stands for."""
        assert len(p) == 1
        n, width = int(lens[0]), tokens.shape[1]
        coins = torch.full((1, width), 0.5, dtype=torch.float64)
        left = p[0, n]
        for j in range(n):
            token = int(tokens[0, j])
            assert q.probs is not None
            chance = min(1.0, float(p[0, j, token] / q.probs[0, j, token]))
            if self.pick([chance, 1 - chance]) == 0:
                coins[0, j] = chance / 2
                continue
            coins[0, j] = (1 + chance) / 2
            left = (p[0, j] - q.probs[0, j]).clamp(min=0)
            break
        cumulated = (left / left.sum()).cumsum(0)
        last = self.pick((left / left.sum()).tolist())
        final = cumulated[last] - left[last] / left.sum() / 2
        accepted, emitted = accept_chain(p, tokens, lens, q, coins=Coins(coins, final[None]))
        assert int(emitted[0, int(accepted[0])]) == last
        return accepted, emitted


def emitted_law(
    target: Toy, round_: Callable[[], tuple[int, ...]], fate: Fate, horizon: int, vocabulary: int
) -> dict[tuple[int, ...], float]:
    """The law of the first `horizon` tokens; what a round leaves open the target says itself."""
    law = dict.fromkeys(itertools.product(range(vocabulary), repeat=horizon), 0.0)
    for emitted, probability in fate.outcomes(round_):
        for path in law:
            if path[: len(emitted)] == emitted[:horizon]:
                law[path] += probability * chain(target, path, len(emitted))
    return law


def chain(target: Toy, path: tuple[int, ...], start: int = 0) -> float:
    probability = 1.0
    for j in range(start, len(path)):
        probability *= float(target.law([*TEXT, *path[:j]])[path[j]])
    return probability


def rounds(
    target: Toy, pyramid: Pyramid, fate: Fate, limit: int, confidence: float = 0.0
) -> Callable[[], tuple[int, ...]]:
    def round_() -> tuple[int, ...]:
        run = pyramid.draft([TEXT], [limit], confidence=[confidence])
        p = target.laws([0], [TEXT], run.tokens, run.lens)
        accepted, tokens = fate.accept(p, run.tokens, run.lens, run.law())
        return tuple(tokens[0, : int(accepted[0]) + 1].tolist())

    return round_


def pyramid_of(kinds: Sequence[str], vocabulary: int, fate: Fate, passes: int = 1) -> Pyramid:
    stages = [Stage(Toy(10 + i, vocabulary, kind), width=2, passes=passes) for i, kind in enumerate(kinds)]
    return Pyramid(stages, sample=fate.sample, accept=fate.accept)


CASES = [
    (["soft"], 3, 3, {}),
    (["soft", "soft"], 3, 2, {}),
    (["soft", "soft"], 2, 3, {"passes": 2}),
    (["soft", "soft"], 2, 3, {"confidence": 0.45}),
    (["soft", "soft", "soft"], 2, 3, {}),
    (["cut", "cut", "cut"], 2, 3, {}),
    (["one-hot", "cut"], 3, 3, {}),
    (["soft", "one-hot"], 3, 3, {}),
]


@pytest.mark.parametrize("target_kind", ["soft", "cut"])
@pytest.mark.parametrize(("kinds", "vocabulary", "limit", "knobs"), CASES)
def test_the_emitted_law_is_the_targets(
    target_kind: str, kinds: list[str], vocabulary: int, limit: int, knobs: dict[str, float]
) -> None:
    fate, target = Fate(), Toy(1, vocabulary, target_kind)
    pyramid = pyramid_of(kinds, vocabulary, fate, int(knobs.get("passes", 1)))
    law = emitted_law(
        target, rounds(target, pyramid, fate, limit, knobs.get("confidence", 0.0)), fate, limit + 1, vocabulary
    )
    assert abs(sum(law.values()) - 1) < 1e-12
    assert max(abs(law[path] - chain(target, path)) for path in law) < 1e-12


@pytest.mark.parametrize("vocabulary", [2, 3])
def test_what_a_level_hands_up_has_its_law(vocabulary: int) -> None:
    fate = Fate()
    pyramid = pyramid_of(["soft", "soft"], vocabulary, fate)
    small = pyramid.stages[1].level
    assert isinstance(small, Toy)

    def round_() -> tuple[int, ...]:
        run = pyramid.draft([TEXT], [3])
        n = int(run.lens[0])
        for j in range(n):
            torch.testing.assert_close(run.probs[0, j], small.law([*TEXT, *run.tokens[0, :j].tolist()]))
        return tuple(run.tokens[0, :n].tolist())

    law = emitted_law(small, round_, fate, 3, vocabulary)
    assert max(abs(law[path] - chain(small, path)) for path in law) < 1e-12


def test_a_wrong_q_is_noticed() -> None:
    """The test's power: handing up the bottom level's law instead of one's own breaks the law visibly."""
    fate, target = Fate(), Toy(1, 2)
    pyramid = pyramid_of(["soft", "soft"], 2, fate)
    bottom = pyramid.stages[0].level
    draft = pyramid.draft

    def wrong(
        texts: Sequence[Sequence[int]],
        limits: Sequence[int],
        active: Sequence[int] | None = None,
        confidence: Sequence[float] | None = None,
    ) -> Run:
        run = draft(texts, limits, active, confidence)
        return Run(run.tokens, run.lens, bottom.laws([0], texts, run.tokens, run.lens)[:, : run.tokens.shape[1]])

    pyramid.draft = wrong  # type: ignore[method-assign]
    law = emitted_law(target, rounds(target, pyramid, fate, 2), fate, 3, 2)
    assert max(abs(law[path] - chain(target, path)) for path in law) > 1e-3


def test_greedy_levels_emit_the_targets_argmax_chain() -> None:
    target = Toy(1, 5)
    pyramid = Pyramid([Stage(Toy(2, 5, "one-hot")), Stage(Toy(3, 5, "one-hot"), width=3)])
    text, alone = [0, 1, 2], [0, 1, 2]
    while len(text) < 40:
        run = pyramid.draft([text], [4])
        p = target.laws([0], [text], run.tokens, run.lens)
        accepted, tokens = accept_greedy(run.tokens, run.lens, p.argmax(-1))
        text += tokens[0, : int(accepted[0]) + 1].tolist()
    while len(alone) < len(text):
        alone.append(int(target.law(alone).argmax()))
    assert text == alone


def test_a_batch_keeps_its_requests_apart() -> None:
    stages = [Stage(Toy(2, 4, "one-hot")), Stage(Toy(3, 4, "one-hot"), width=3, passes=5)]
    pyramid = Pyramid(stages, accept=lambda p, tokens, lens, q, where: accept_greedy(tokens, lens, p.argmax(-1)))
    texts = [[0], [1, 2], [3], [2, 2]]
    together = pyramid.draft(texts, [5, 1, 0, 3])
    assert together.lens.tolist() == [5, 1, 0, 3]
    for i, limit in enumerate([5, 1, 0, 3]):
        alone = pyramid.draft([texts[i]], [limit])
        assert alone.tokens[0].tolist() == together.tokens[i, :limit].tolist()


def test_an_inactive_level_is_not_run() -> None:
    tiny, small = Toy(2, 4), Toy(3, 4)
    pyramid = Pyramid([Stage(tiny), Stage(small, width=3)])
    pyramid.draft([[0]], [4], active=[1])
    assert (tiny.passes, small.passes) == (0, 4)
    pyramid.draft([[0]], [4], active=[0])
    assert (tiny.passes, small.passes) == (4, 4)
    pyramid.draft([[0]], [4])
    assert (tiny.passes, small.passes) == (7, 5)
    with pytest.raises(ValueError, match="without an active level"):
        pyramid.draft([[0]], [4], active=[])


def test_it_tells_how_well_neighbours_agree() -> None:
    heard: list[tuple[int, int, list[int], list[int], list[int]]] = []
    pyramid = Pyramid(
        [Stage(Toy(2, 4)), Stage(Toy(3, 4), width=3)],
        generator=torch.Generator().manual_seed(0),
        watch=lambda lower, upper, rows, kept, made: heard.append((lower, upper, list(rows), kept, made)),
    )
    run = pyramid.draft([[0], [1, 2]], [4, 2])
    ((lower, upper, rows, kept, made),) = heard
    assert (lower, upper, rows, made) == (0, 1, [0, 1], [3, 1])
    assert run.lens.tolist() == [n + 1 for n in kept]
