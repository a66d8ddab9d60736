"""What would the host sources have guessed? Replays recorded outputs without a model.

    python -m sgl_spec.draft.replay                 # synthetic repetitive text
    python -m sgl_spec.draft.replay outputs.jsonl   # {"prompt": [ids], "output": [ids], "program": "chat"}

An output that is known is what a greedy target would say, so each guess can be judged by comparison. Prints a
card and one JSON line: tokens per round, acceptance by source, how honest the estimates are, and microseconds
of host time. It measures the sources, not the speed of an engine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from sgl_spec.draft.base import SourceCount, SourceOptions
from sgl_spec.draft.cache import DraftCache
from sgl_spec.draft.sources import HostSources


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request whose output is known, as token ids."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    program: str = ""
    prediction: tuple[int, ...] = ()


@dataclass(slots=True)
class Replay:
    """Totals over all replayed requests."""

    rounds: int = 0
    tokens: int = 0
    by_source: dict[str, SourceCount] = field(default_factory=dict)
    expected: float = 0.0  # sum of the estimates of all tested guesses
    tested: int = 0
    right: int = 0
    draft_us: list[float] = field(default_factory=list)
    accept_us: list[float] = field(default_factory=list)

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per verify pass, the bonus token included."""
        return self.tokens / max(1, self.rounds)

    def summary(self) -> dict[str, object]:
        """Return the JSON line."""
        return {
            "name": "replay",
            "rounds": self.rounds,
            "tokens_per_round": round(self.tokens_per_round, 3),
            "by_source": {name: [c.proposed, c.accepted] for name, c in sorted(self.by_source.items())},
            "estimated_acceptance": round(self.expected / max(1, self.tested), 4),
            "observed_acceptance": round(self.right / max(1, self.tested), 4),
            "draft_us": round(median(self.draft_us), 1) if self.draft_us else None,
            "accept_us": round(median(self.accept_us), 1) if self.accept_us else None,
        }


def replay(
    sources: HostSources, requests: Iterable[Recorded], *, limit: int = 8, confidence: float = 0.35
) -> Replay:
    """Replay requests one after another; guesses that survive with `confidence` or more are verified."""
    result = Replay()
    for n, request in enumerate(requests):
        _replay_one(sources, f"replay-{n}", request, result, limit=limit, confidence=confidence)
    result.by_source = dict(sources.totals)
    return result


def _replay_one(
    sources: HostSources, rid: str, request: Recorded, result: Replay, *, limit: int, confidence: float
) -> None:
    options = SourceOptions(program=request.program, prediction=request.prediction)
    sources.begin(rid, request.prompt, options)
    at, output = 0, list(request.output)
    while at < len(output):
        start = time.perf_counter()
        proposal = sources.draft(rid, min(limit, len(output) - at - 1))
        drafted = time.perf_counter()
        verified, survival = 0, 1.0
        for a in proposal.acceptance:
            survival *= a
            if survival < confidence:
                break
            verified += 1
        right = _agreement(proposal.tokens, output[at:])
        tested = min(right + 1, len(proposal))
        result.tested += tested
        result.right += right
        result.expected += sum(proposal.acceptance[:tested])
        emitted = output[at : at + min(right, verified) + 1]
        before = time.perf_counter()
        sources.accept(rid, emitted, verified)
        result.draft_us.append((drafted - start) * 1e6)
        result.accept_us.append((time.perf_counter() - before) * 1e6)
        result.rounds += 1
        result.tokens += len(emitted)
        at += len(emitted)
    sources.end(rid)


def _agreement(guesses: Sequence[int], truth: Sequence[int]) -> int:
    n = 0
    while n < min(len(guesses), len(truth)) and guesses[n] == truth[n]:
        n += 1
    return n


def repetitive_text(seed: int = 0, requests: int = 40, noise: float = 0.1) -> Iterator[Recorded]:
    """Yield outputs made of a few phrases, as records and code are; a share `noise` of the tokens differs."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(1000, size=rng.integers(4, 21)) for _ in range(12)]
    for n in range(requests):
        chosen = rng.integers(6, size=80) + 6 * (n % 2)
        text = np.concatenate([phrases[i] for i in chosen])[:300]
        text = np.where(
            rng.random(len(text)) < noise, rng.integers(1000, 1100, size=len(text)), text
        ).tolist()
        yield Recorded(tuple(text[:60]), tuple(text[60:]), program="ab"[n % 2])


def read_jsonl(path: Path) -> Iterator[Recorded]:
    """Read recorded requests, one JSON object per line."""
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            yield Recorded(
                tuple(row["prompt"]),
                tuple(row["output"]),
                row.get("program", ""),
                tuple(row.get("prediction", ())),
            )


def main(arguments: Sequence[str]) -> int:
    """Print the card and the JSON line."""
    requests = read_jsonl(Path(arguments[0])) if arguments else repetitive_text()
    result = replay(HostSources(DraftCache()), requests)
    summary = result.summary()
    for key, value in summary.items():
        print(f"{key:>22}  {value}")
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
