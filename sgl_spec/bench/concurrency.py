"""`sgl-spec bench load`: latency and throughput with several requests under way, guessing and plain."""

import random
from statistics import mean
from typing import Annotated, Any

import typer

from sgl_spec.bench.ab import PLAIN, Arm
from sgl_spec.bench.engine import pair, running
from sgl_spec.bench.load import Ask
from sgl_spec.bench.options import DraftOption, QuickFlag, SaveFlag, TargetOption, TokensOption, finish
from sgl_spec.bench.stream import Timed, stream_all
from sgl_spec.bench.workloads import chat_prompts
from sgl_spec.console import JsonFlag, people
from sgl_spec.stats import acceptance_rate
from sgl_spec.train.prompts import TASKS

MEANING = "tokens/s of the default / of plain decoding, geometric mean of the numbers of requests; spread: extremes"
ARMS = (Arm("plain", PLAIN), Arm("default", {}))
LEVELS = (1, 4, 16)
MOST = 32


def load(
    target: TargetOption = None,
    draft: DraftOption = None,
    at_once: Annotated[list[int] | None, typer.Option(min=1, max=MOST, help="Requests at a time; repeatable.")] = None,
    max_new_tokens: TokensOption = 48,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Streams of mixed prompts: latency (mean, P50, P95, P99), time to first token, time per token, tokens/s.

    Twice as many prompts as requests at a time, at least six; none is repeated.

    Example: sgl-spec bench load --at-once 1 --at-once 8 --json
    """
    out = people(json_output)
    levels = tuple(at_once or LEVELS)
    if quick:
        levels, max_new_tokens = (1, 2), 12
    models = pair(target, draft)
    mixed = [text for task in TASKS for text in chat_prompts(models[0], task, 32)]
    random.Random(0).shuffle(mixed)  # noqa: S311 - an order, not a secret
    rows: list[dict[str, Any]] = []
    ratios = []
    with running(*models, out) as engine:
        for number, level in enumerate(levels):
            texts = [mixed.pop() for _ in range(min(max(6, 2 * level), len(mixed)))]
            found = {}
            for arm in ARMS if number % 2 else reversed(ARMS):
                name = f"load {number} {arm.name}"
                options = {"namespace": name, "program": f"load {arm.name}", **arm.options}
                how = Ask(max_new_tokens)
                found[arm.name] = stream_all(engine.runtime.url, texts, options, how, level, name)
            rows += [_row(level, arm.name, *found[arm.name], found["plain"][0]) for arm in ARMS]
            ratios.append(rows[-1]["tokens_per_s"] / rows[-2]["tokens_per_s"])
            out.print(f"  {level} at once done")
    product = 1.0
    for one in ratios:
        product *= one
    ratio = (product ** (1 / len(ratios)), min(ratios), max(ratios))
    finish(out, "load", MEANING, ratio, rows, threads=engine.threads, save=save, json_output=json_output)


def _row(level: int, name: str, answers: list[Timed], seconds: float, plain: list[Timed]) -> dict[str, Any]:
    counts = [answer.meta.get("sgl_spec") or {} for answer in answers]
    rate = acceptance_rate(
        sum(count.get("num_accepted_draft_tokens") or 0 for count in counts),
        sum(count.get("num_draft_tokens") or 0 for count in counts),
    )
    latency = sorted(answer.last_s for answer in answers)
    first = sorted(answer.first_s for answer in answers)
    tokens = sum(answer.meta["completion_tokens"] for answer in answers)
    return {
        "at_once": level,
        "arm": name,
        "requests": len(answers),
        "tokens_per_s": round(tokens / seconds, 2),
        "latency_mean_s": round(mean(latency), 3),
        **{f"latency_p{p}_s": round(percentile(latency, p), 3) for p in (50, 95, 99)},
        "first_token_p50_s": round(percentile(first, 50), 3),
        "first_token_p95_s": round(percentile(first, 95), 3),
        "per_token_ms": round(1e3 * mean(answer.per_token_s for answer in answers), 2),
        "acceptance_rate": None if rate is None else round(rate, 3),
        "same_ids": [answer.ids for answer in answers] == [answer.ids for answer in plain],
    }


def percentile(ordered: list[float], p: float) -> float:
    """The value at `p` percent of an ascending list, between neighbours linearly."""
    at = (len(ordered) - 1) * p / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
