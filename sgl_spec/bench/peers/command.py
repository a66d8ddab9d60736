"""`sgl-spec bench peers`: other engines on the same target, draft and prompts, in turn with ours."""

from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.console import Console

from sgl_spec.bench.engine import pair, running
from sgl_spec.bench.options import (
    DraftOption,
    QuickFlag,
    SaveFlag,
    TargetOption,
    TokensOption,
    finish,
    prompts_option,
)
from sgl_spec.bench.peers.environments import PEERS
from sgl_spec.bench.peers.gguf_f32 import add_f32_files
from sgl_spec.bench.peers.measure import Series, headline, in_turn, rows_of
from sgl_spec.bench.peers.sglang import OUR_MODES, Ours, stock
from sgl_spec.bench.peers.side import Side
from sgl_spec.bench.workloads import chat_prompts
from sgl_spec.console import JsonFlag, people
from sgl_spec.errors import ConfigError, EngineError
from sgl_spec.names import nearest

MEANING = "tokens/s of ours with all sources / of the fastest other engine, one request at a time, fp32, one thread"
SGLANG = "sglang"
BATCH = 16


def peers(
    target: TargetOption = None,
    draft: DraftOption = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Of {SGLANG}, {', '.join(PEERS)}; repeatable.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Make the peers' environments first.")] = False,
    prompts: Annotated[int, prompts_option("Prompts of each of chat and code, one at a time.")] = 3,
    max_new_tokens: TokensOption = 64,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Stock SGLang on PyTorch, Transformers, llama.cpp and vLLM against ours, plainly and with guesses.

    Each peer is loaded beside our engine, asked in turn with it prompt by prompt, then 16 requests at once (half as
    many tokens each), and stopped before the next one is loaded. All in fp32 on one thread, prompts cold. One that is
    not installed is skipped with a sentence. llama.cpp runs from the wheel xllamacpp. With --only the result is
    named after the peers.

    \b
    Examples:
      sgl-spec bench peers --install
      sgl-spec bench peers --only llama.cpp --json
    """
    out = people(json_output)
    names = (SGLANG, *PEERS)
    for name in only or ():
        if name not in names:
            raise ConfigError(f"there is no peer {name!r}{nearest(name, names)}: see --help.")
    chosen = [name for name in names if not only or name in only]
    if install:
        for name in chosen:
            if name in PEERS:
                PEERS[name].install()
    models = pair(target, draft)
    job, calls = _job(models, 1 if quick else prompts, 8 if quick else max_new_tokens, 4 if quick else BATCH)
    rows: list[dict[str, Any]] = []
    ratios = []
    with running(*models, out) as engine:
        for name in chosen:
            ours = Ours(engine.client, name, {mode: [1, len(job["batch"])] for mode in OUR_MODES})
            series = _against(name, ours, job, calls, out)
            if series:
                rows += rows_of(series, ours.engine)
                ratios.append(headline(series, ours.engine))
    if not ratios:
        raise EngineError(f"no peer ran: install one with --install, or choose --only {SGLANG}.")
    found = min(ratios, key=lambda one: one.value)
    title = "-".join(["peers", *chosen]) if only else "peers"
    finish(out, title, MEANING, found, rows, threads=1, save=save, json_output=json_output)


def _job(
    models: tuple[str, str], prompts: int, tokens: int, size: int
) -> tuple[dict[str, Any], list[tuple[list[str], int]]]:
    """What a peer is started with, and the calls: prompts one by one, then `size` of them at once."""
    half = size // 2
    tasks = [chat_prompts(models[0], task, prompts + half) for task in ("chat", "code")]
    batch = [text for texts in tasks for text in texts[prompts:]]
    alone = [texts[number] for number in range(prompts) for texts in tasks]
    job = {"target": models[0], "draft": models[1], "batch": batch, "threads": 1}
    return job, [*(([text], tokens) for text in alone), (batch, max(tokens // 2, 4))]


def _against(
    name: str, ours: Side, job: dict[str, Any], calls: list[tuple[list[str], int]], out: Console
) -> list[Series]:
    """Both sides' series; none, with a sentence on the console, if the peer is missing or fails."""
    if name in PEERS and (sentence := PEERS[name].missing()):
        out.print(f"  {sentence}")
        return []
    try:
        with ExitStack() as stack:
            if name == SGLANG:
                other: Side = stack.enter_context(stock(job))
            else:
                if name == "llama.cpp":
                    job = add_f32_files(job, PEERS[name].folder)
                process = stack.enter_context(PEERS[name].start(job))
                for mode, why in process.failed.items():
                    out.print(f"  {name}, {mode}: skipped, it failed ({why})")
                other = process
            out.print(f"  {other.engine} is up")
            return in_turn([ours, other], calls, out.print)
    except EngineError as error:
        out.print(f"  {name} is skipped: {error}")
        return []
