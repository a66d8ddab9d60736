"""`sgl-spec bench overhead`: which share of a decoding round is not spent in model forwards."""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, quantiles
from typing import Annotated, Any

import typer

from sgl_spec.bench.ab import PLAIN, Arm
from sgl_spec.bench.engine import Engine, pair, running
from sgl_spec.bench.load import Ask
from sgl_spec.bench.options import (
    DraftOption,
    QuickFlag,
    SaveFlag,
    TargetOption,
    TokensOption,
    finish,
    prompts_option,
)
from sgl_spec.bench.stream import stream_all
from sgl_spec.bench.workloads import chat_prompts
from sgl_spec.console import JsonFlag, people

MEANING = "share of a round's time outside model forwards under the default policy, the larger of batch 1 and 8"
CLOCK = "SGL_SPEC_CLOCK"  # names the file that the scheduler's stopwatch (sglang_plugin/clock.py) writes
BATCHES = (1, 8)
IDLE_S = 10.0  # after which no lines are waited for
DEFAULT = "default"
ARMS = (
    Arm("plain", PLAIN),
    Arm("fixed K=4", {"controller": "fixed", "num_speculative_tokens": 4}),
    Arm(DEFAULT, {}),
)


def overhead(
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[int, prompts_option("Prompts per arm at batch 1, and batches of 8.")] = 3,
    max_new_tokens: TokensOption = 64,
    streamed: Annotated[
        bool, typer.Option("--streamed", help="Stream every answer: an output leaves per round.")
    ] = False,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Time inside and outside forwards of target and draft, from the start of a round to that of the next.

    The scheduler's own work between rounds counts as outside. On the real engine, with a stopwatch in it.

    Example: sgl-spec bench overhead --json
    """
    out = people(json_output)
    if quick:
        prompts, max_new_tokens = 1, 12
    models = pair(target, draft)
    texts = chat_prompts(models[0], "code", 8 * prompts)
    rounds: dict[tuple[int, str], list[dict[str, float]]] = {}
    with stopwatch() as file, running(*models, out) as engine:
        for number in range(prompts):
            for size in BATCHES:
                for arm in ARMS:
                    seen = len(_lines(file))
                    _ask(engine, arm, texts[8 * number :][:size], max_new_tokens, streamed)
                    new = [line for line in _further(file, seen) if line["batch"] == size]
                    rounds.setdefault((size, arm.name), []).extend(new)
    rows = [_row(size, name, found) for (size, name), found in rounds.items()]
    worst = max((row for row in rows if row["arm"] == DEFAULT), key=lambda row: row["outside_forwards"])
    shares = [1 - line["forward_ms"] / line["wall_ms"] for line in rounds[worst["batch"], DEFAULT]]
    cuts = quantiles(shares, n=40) if len(shares) > 1 else shares
    ratio = (worst["outside_forwards"], cuts[0], cuts[-1])
    finish(out, "overhead", MEANING, ratio, rows, threads=engine.threads, save=save, json_output=json_output)


@contextmanager
def stopwatch() -> Iterator[Path]:
    """Let engines started in this block write their rounds to the file that is returned."""
    with tempfile.TemporaryDirectory(prefix="sgl-spec-clock-") as folder:
        os.environ[CLOCK] = str(Path(folder) / "rounds.jsonl")
        try:
            yield Path(os.environ[CLOCK])
        finally:
            del os.environ[CLOCK]


def _lines(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _further(file: Path, seen: int) -> list[dict[str, float]]:
    """The lines after the first `seen`, which the scheduler writes as soon as it is idle."""
    deadline = time.monotonic() + IDLE_S
    while len(lines := _lines(file)) == seen and time.monotonic() < deadline:
        time.sleep(0.02)
    return lines[seen:]


def _ask(engine: Engine, arm: Arm, texts: list[str], tokens: int, streamed: bool) -> None:
    options, how = {"namespace": arm.name, "program": arm.name, **arm.options}, Ask(tokens, ignore_eos=True)
    if streamed:
        stream_all(engine.runtime.url, texts, options, how, len(texts), key=arm.name)
    else:
        engine.client.ask(texts, options, how, key=arm.name)


def _row(size: int, name: str, found: list[dict[str, float]]) -> dict[str, Any]:
    wall, inside = mean(line["wall_ms"] for line in found), mean(line["forward_ms"] for line in found)
    worker = mean(line["worker_ms"] for line in found)
    return {
        "batch": size,
        "arm": name,
        "rounds": len(found),
        "round_ms": round(wall, 2),
        "forwards_ms": round(inside, 2),
        "worker_outside_ms": round(worker - inside, 2),
        "scheduler_ms": round(wall - worker, 2),
        "outside_forwards": round(1 - inside / wall, 4),
    }
