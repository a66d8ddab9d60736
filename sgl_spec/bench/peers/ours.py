"""SGLang through our CPU enablement: with our kernels, plainly and with all sources, and on PyTorch's kernels."""

import os
from typing import Any

from rich.console import Console

from sgl_spec.bench.ab import PLAIN
from sgl_spec.bench.engine import running
from sgl_spec.bench.load import Ask, Client
from sgl_spec.cpu.build import CHOICE

OURS = "sgl-spec"
TORCH = "SGLang on PyTorch"


def our_series(job: dict[str, Any], out: Console) -> dict[str, Any]:
    """The job on the pair: plain and speculative in turn, prompt by prompt."""
    series: dict[tuple[str, int], list[list[float]]] = {}
    with running(job["target"], job["draft"], out) as engine:
        for number, text in enumerate(job["prompts"]):
            modes = [("plain", PLAIN), ("speculative", {})]
            for mode, options in reversed(modes) if number % 2 else modes:
                call = _ask(engine.client, [text], job["tokens"], options, mode)
                series.setdefault((mode, 1), []).append(call)
        for mode, options in (("plain", PLAIN), ("speculative", {})):
            call = _ask(engine.client, job["batch"], job["batch_tokens"], options, f"{mode} batch")
            series.setdefault((mode, len(job["batch"])), []).append(call)
    return _answer(OURS, series)


def torch_series(job: dict[str, Any], out: Console) -> dict[str, Any]:
    """The job on SGLang without guesses and without our kernels."""
    before = os.environ.get(CHOICE)
    os.environ[CHOICE] = "torch"
    try:
        with running(job["target"], None, out, draft_cache=False, prediction=False) as engine:
            alone = [_ask(engine.client, [text], job["tokens"], {}, "alone") for text in job["prompts"]]
            together = [_ask(engine.client, job["batch"], job["batch_tokens"], {}, "batch")]
    finally:
        if before is None:
            del os.environ[CHOICE]
        else:
            os.environ[CHOICE] = before
    return _answer(TORCH, {("plain", 1): alone, ("plain", len(job["batch"])): together})


def _ask(client: Client, texts: list[str], tokens: int, options: dict[str, Any], name: str) -> list[float]:
    answer = client.ask(texts, {"namespace": name, "program": name, **options}, Ask(tokens, ignore_eos=True), key=name)
    return [answer.tokens, answer.seconds]


def _answer(engine: str, series: dict[tuple[str, int], list[list[float]]]) -> dict[str, Any]:
    found = [{"mode": mode, "requests": size, "calls": calls} for (mode, size), calls in series.items()]
    return {"engine": engine, "series": found}
