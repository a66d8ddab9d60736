"""`sgl-spec export vllm`: the same speculation on another engine, and what that engine has no counterpart for."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from sgl_spec.config import ControllerName, SpecConfig
from sgl_spec.console import JsonFlag, emit, people
from sgl_spec.errors import ConfigError

LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}  # n-gram lengths that vLLM looks up in the text so far

export = typer.Typer(add_completion=False, help="A configuration for another engine.", no_args_is_help=True)


@export.callback()
def _group() -> None:
    """Keep `vllm` a command of its own although it is the only one."""


@export.command("vllm")
def vllm_command(
    model_path: Annotated[str, typer.Option(help="Target.")],
    draft_model_path: Annotated[str | None, typer.Option(help="Draft; left out: vLLM's n-gram lookup.")] = None,
    num_speculative_tokens: Annotated[int, typer.Option(min=0, help="Drafted tokens per round.")] = 5,
    controller: Annotated[str, typer.Option(help="Our policy, to be told what vLLM does instead.")] = "throughput",
    tp_size: Annotated[int, typer.Option(min=1, help="GPUs per model.")] = 1,
    json_output: JsonFlag = False,
) -> None:
    """Print the `vllm serve` command with the right --speculative-config, and what has to be run before it.

    \b
    Example:
      sgl-spec export vllm --model-path TARGET --draft-model-path DRAFT
    """
    prepare, draft = vllm_draft(draft_model_path) if draft_model_path else ([], None)
    config = SpecConfig.parse(
        {
            "model_path": model_path,
            "draft_model_path": draft,
            "num_speculative_tokens": num_speculative_tokens,
            "controller": controller,
        }
    )
    speculation = vllm_config(config, tp_size)
    notes = vllm_differences(config)
    words = ["vllm", "serve", config.model_path]
    if tp_size > 1:
        words += ["--tensor-parallel-size", str(tp_size)]
    if speculation is not None:
        words += ["--speculative-config", json.dumps(speculation)]
    out = people(json_output)
    for line in (*prepare, shlex.join(words)):
        out.print(line, markup=False)
    for note in notes:
        out.print(f"# {note}", markup=False)
    if json_output:
        emit({"prepare": prepare, "command": words, "speculative_config": speculation, "differences": notes})


def vllm_draft(path: str) -> tuple[list[str], str]:
    """Return shell lines that make a draft's folder readable for vLLM, and that folder.

    vLLM takes every safetensors file for weights, so ours needs a folder of links without its list of hot tokens.
    """
    from sgl_spec.draft.model import IDS_FILE

    folder = Path(path)
    if not (folder / IDS_FILE).is_file():
        return [], path
    copy = f"{folder.resolve().name}-vllm"
    source, target = shlex.quote(str(folder.resolve())), shlex.quote(copy)
    return [f"mkdir {target}", f"cp -s {source}/* {target}/", f"rm {target}/{IDS_FILE}"], copy


def vllm_config(config: SpecConfig, tp_size: int = 1) -> dict[str, Any] | None:
    """Return vLLM's speculative configuration, None where nothing is to be drafted. Raises ConfigError.

    Keys as vLLM documents them: method draft_model with a model, or ngram with the lengths to look up.
    """
    if config.num_speculative_tokens == 0:
        return None
    drafts = config.draft_model_paths
    if len(drafts) > 1:
        raise ConfigError(f"draft_model_path={list(drafts)} is a pyramid, which vLLM has not: name one draft.")
    if drafts:
        own: dict[str, Any] = {"method": "draft_model", "model": drafts[0]}
        if tp_size > 1:
            own["draft_tensor_parallel_size"] = tp_size
        return {**own, "num_speculative_tokens": config.num_speculative_tokens}
    return {"method": "ngram", "num_speculative_tokens": config.num_speculative_tokens, **LOOKUP}


def vllm_differences(config: SpecConfig) -> list[str]:
    """Return one sentence per setting of ours that this configuration does not carry over."""
    notes = []
    fixed: ControllerName = "fixed"
    if config.controller != fixed and config.num_speculative_tokens:
        notes.append(
            f"controller={config.controller}: this configuration drafts {config.num_speculative_tokens} tokens "
            "in every round, whether they pay or not."
        )
    if config.draft_cache and config.draft_model_paths:
        notes.append("draft_cache: vLLM drafts from one source; earlier outputs are not reused as drafts.")
    if config.prediction:
        notes.append("prediction: the field is not used as a draft there.")
    return notes
