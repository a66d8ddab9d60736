"""Ours and others on the same prompts in turn, and what that makes of them: rows, and one ratio."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sgl_spec.bench.ab import Ratio, ratio
from sgl_spec.bench.load import Answer
from sgl_spec.bench.peers.sglang import PLAINLY, SPECULATIVE
from sgl_spec.bench.peers.side import Call, Side
from sgl_spec.errors import EngineError


@dataclass
class Series:
    """The calls of one mode of one side with so many requests at once."""

    side: Side
    mode: str
    requests: int
    calls: list[Call] = field(default_factory=list)

    @property
    def answers(self) -> list[Answer]:
        """The same as `sgl_spec.bench.ab` compares them: only the number of tokens counts."""
        return [Answer(call.seconds, [], [[0] * call.tokens], call.texts) for call in self.calls]


class Goal(NamedTuple):
    """Our mode is to be `ratio` times as fast as a peer's mode."""

    engine: str  # what the engine's name begins with
    mode: str
    requests: int
    ours: str
    ratio: float


GOALS = (
    Goal("Transformers", "assisted", 1, SPECULATIVE, 2.0),
    Goal("Transformers", "assisted, one after the other", 16, SPECULATIVE, 6.0),
    Goal("llama.cpp", PLAINLY, 1, PLAINLY, 1.2),
)


def in_turn(
    sides: Sequence[Side], calls: Sequence[tuple[list[str], int]], progress: Callable[[str], None]
) -> list[Series]:
    """Ask each side in each of its modes for each call (prompts, new tokens of each); the order turns."""
    found: dict[tuple[str, str, int], Series] = {}
    for number, (texts, tokens) in enumerate(calls):
        asked = [(side, mode) for side in sides for mode, sizes in side.modes.items() if len(texts) in sizes]
        turn = number % len(asked)
        for side, mode in [*asked[turn:], *asked[:turn]]:
            name = (side.engine, mode, len(texts))
            series = found.setdefault(name, Series(side, mode, len(texts)))
            series.calls.append(side.ask(mode, texts, tokens))
        progress(f"  call {number + 1} of {len(calls)}, {len(texts)} at once: done")
    order = {(side.engine, mode): i for i, (side, mode) in enumerate((s, m) for s in sides for m in s.modes)}
    return sorted(found.values(), key=lambda one: (one.requests, order[one.side.engine, one.mode]))


def pick(series: Sequence[Series], engine: str, mode: str, requests: int) -> Series | None:
    """The series of that name, None if there is none."""
    return next((s for s in series if (s.side.engine, s.mode, s.requests) == (engine, mode, requests)), None)


def rows_of(series: Sequence[Series], ours: str) -> list[dict[str, Any]]:
    """A row per series; `ours` is our engine's name."""
    rows = []
    for one in series:
        plain = pick(series, one.side.engine, PLAINLY, one.requests)
        our_plain = pick(series, ours, PLAINLY, one.requests)
        our_best = pick(series, ours, SPECULATIVE, one.requests)
        assert our_plain is not None
        assert our_best is not None
        gain = None if plain is None or plain is one else ratio(one.answers, plain.answers)
        tokens, seconds = (sum(call.tokens for call in one.calls), sum(call.seconds for call in one.calls))
        row: dict[str, Any] = {
            "engine": one.side.engine,
            "mode": one.mode,
            "requests": one.requests,
            "tokens": tokens,
            "seconds": round(seconds, 2),
            "tokens_per_s": round(tokens / seconds, 2),
            "to_its_own_plain": None if gain is None else round(gain.value, 3),
            "spread": _spread(gain),
        }
        if one.side.engine != ours:
            best, as_plain = ratio(our_best.answers, one.answers), ratio(our_plain.answers, one.answers)
            row |= {
                "our_sources_to_this": round(best.value, 3),
                "their_spread": _spread(best),
                "our_plain_to_this": round(as_plain.value, 3),
                "plain_spread": _spread(as_plain),
                "same_texts": f"{_same(one, our_plain)} of {len(one.calls) * one.requests}",
                **_goal(one, {SPECULATIVE: best.value, PLAINLY: as_plain.value}),
            }
        rows.append(row)
    return rows


def headline(series: Sequence[Series], ours: str) -> Ratio:
    """Ours with all sources against the fastest mode of another engine, one request at a time."""
    best = pick(series, ours, SPECULATIVE, 1)
    others = [one for one in series if one.side.engine != ours and one.requests == 1]
    if best is None or not others:
        raise EngineError("no peer ran besides sgl-spec: install one with --install, or add --only sglang.")
    return min((ratio(best.answers, other.answers) for other in others), key=lambda found: found.value)


def _goal(one: Series, ours: dict[str, float]) -> dict[str, Any]:
    for goal in GOALS:
        if one.side.engine.startswith(goal.engine) and (one.mode, one.requests) == (goal.mode, goal.requests):
            return {"goal": f"our {goal.ours} >= {goal.ratio:g}", "met": ours[goal.ours] >= goal.ratio}
    return {}


def _same(one: Series, other: Series) -> int:
    pairs = zip(one.calls, other.calls, strict=True)
    return sum(a.strip() == b.strip() for x, y in pairs for a, b in zip(x.texts, y.texts, strict=True))


def _spread(found: Ratio | None) -> list[float] | None:
    return None if found is None else [round(found.low, 3), round(found.high, 3)]
