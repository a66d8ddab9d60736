"""`sgl-spec bench peers`: other engines on the same target, draft and prompts, in one run."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sgl_spec.bench.ab import ratio
from sgl_spec.bench.engine import pair
from sgl_spec.bench.load import Answer
from sgl_spec.bench.options import (
    DraftOption,
    QuickFlag,
    SaveFlag,
    TargetOption,
    TokensOption,
    finish,
    prompts_option,
)
from sgl_spec.bench.peers.engines import PEERS, Peer
from sgl_spec.bench.peers.gguf_f32 import write_f32
from sgl_spec.bench.peers.ours import OURS, TORCH, our_series, torch_series
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
    prompts: Annotated[int, prompts_option("Prompts of each of chat and code, one at a time.")] = 2,
    max_new_tokens: TokensOption = 64,
    quick: QuickFlag = False,
    save: SaveFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Ours, SGLang on PyTorch's kernels, Transformers, llama.cpp and vLLM, one after the other.

    Each in fp32 on one thread, with an environment of its own; one that is not installed is skipped with a
    sentence. llama.cpp runs from the wheel xllamacpp.

    \b
    Examples:
      sgl-spec bench peers --install
      sgl-spec bench peers --only llama.cpp --json
    """
    out = people(json_output)
    for name in only or ():
        if name not in (SGLANG, *PEERS):
            raise ConfigError(f"there is no peer {name!r}{nearest(name, (SGLANG, *PEERS))}: see --help.")
    chosen = [peer for name, peer in PEERS.items() if not only or name in only]
    if install:
        for peer in chosen:
            peer.install()
    models = pair(target, draft)
    size = 4 if quick else BATCH
    with tempfile.TemporaryDirectory(prefix="sgl-spec-peers-") as scratch:
        job = _job(models, 1 if quick else prompts, 8 if quick else max_new_tokens, size)
        answers = [our_series(job, out)]
        if not only or SGLANG in only:
            answers.append(torch_series(job, out))
        for peer in chosen:
            answer = _run(peer, job, Path(scratch), out)
            answers += [answer] if answer else []
    rows = [row for answer in answers for row in _rows(answer, answers[0])]
    found = _headline(answers)
    finish(out, "peers", MEANING, found, rows, threads=1, save=save, json_output=json_output)


def _job(models: tuple[str, str], prompts: int, tokens: int, size: int) -> dict[str, Any]:
    texts = [text for task in ("chat", "code") for text in chat_prompts(models[0], task, prompts)]
    batch = chat_prompts(models[0], "code", size + prompts)[prompts:]
    return {
        "target": models[0],
        "draft": models[1],
        "prompts": texts,
        "tokens": tokens,
        "batch": batch,
        "batch_tokens": max(tokens // 2, 4),
        "threads": 1,
    }


def _run(peer: Peer, job: dict[str, Any], scratch: Path, out: Console) -> dict[str, Any] | None:
    """A peer's answer; None, with a sentence on the console, if it is missing or cannot run this job."""
    reason = peer.missing()
    try:
        if reason is None and peer.name == "llama.cpp":
            like = next(peer.folder.rglob("*.gguf"))
            for kind in ("target", "draft"):
                job[f"{kind}_gguf"] = str(write_f32(Path(job[kind]), like, scratch / f"{kind}.gguf"))
        if reason is None:
            answer = peer.run(job)
            for mode, why in answer.get("failed", {}).items():
                out.print(f"  {peer.name}, {mode}: skipped, it failed ({why})")
            out.print(f"  {answer['engine']} done")
            return answer
    except (EngineError, KeyError) as error:
        reason = f"{peer.name} is skipped: {error}"
    out.print(f"  {reason}")
    return None


def _series(answer: dict[str, Any], mode: str, requests: int) -> list[Answer]:
    for one in answer["series"]:
        if one["mode"] == mode and one["requests"] == requests:
            return [Answer(seconds, [], [[0] * int(tokens)], []) for tokens, seconds in one["calls"]]
    return []


def _rows(answer: dict[str, Any], ours: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for one in answer["series"]:
        own = _series(answer, one["mode"], one["requests"])
        tokens, seconds = sum(a.tokens for a in own), sum(a.seconds for a in own)
        best, plain = _series(ours, "speculative", one["requests"]), _series(answer, "plain", one["requests"])
        ours_plain = _series(ours, "plain", one["requests"])
        rows.append(
            {
                "engine": answer["engine"],
                "mode": one["mode"],
                "requests": one["requests"],
                "tokens": tokens,
                "seconds": round(seconds, 2),
                "tokens_per_s": round(tokens / seconds, 2),
                "to_its_own_plain": round(ratio(own, plain).value, 3) if len(own) == len(plain) else None,
                "ours_speculative_to_this": round(ratio(best, own).value, 3),
                "ours_plain_to_this": round(ratio(ours_plain, own).value, 3),
            }
        )
    return rows


def _headline(answers: list[dict[str, Any]]) -> tuple[float, float, float]:
    best = _series(answers[0], "speculative", 1)
    others = [
        _series(answer, one["mode"], 1) for answer in answers[1:] for one in answer["series"] if one["requests"] == 1
    ]
    if not others:
        raise EngineError(f"no peer ran besides {OURS}: install one with --install, or add --only {SGLANG} ({TORCH}).")
    return min((ratio(best, other) for other in others), key=lambda found: found.value)
