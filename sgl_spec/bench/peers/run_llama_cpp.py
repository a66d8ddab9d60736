"""Answers a job (JSON on stdin) with llama.cpp's server in this process (xllamacpp): F32 weights and KV.

The job's `target_gguf` and `draft_gguf` are F32 files. Prints as `run_transformers.py` does.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp


def start(job: dict[str, Any], slots: int, draft: str | None, ngram: bool = False) -> Any:
    """Load the model with `slots` parallel requests."""
    params = xllamacpp.CommonParams()
    params.model.path = job["target_gguf"]
    params.n_parallel = slots
    params.n_ctx = 1024 * slots
    params.warmup = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    kinds = xllamacpp.common_speculative_type
    if draft:
        own = params.speculative.draft
        own.mparams.path = draft
        own.cpuparams.n_threads = own.cpuparams_batch.n_threads = job["threads"]
        own.cache_type_k = own.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    if ngram:
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    return xllamacpp.Server(params)


def ask(server: Any, texts: list[str], tokens: int) -> list[float]:
    """Send texts at once; return [tokens, seconds]."""
    body = {"n_predict": tokens, "temperature": 0.0, "top_k": 1, "ignore_eos": True, "cache_prompt": False}
    started = time.perf_counter()
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: server.handle_completions({**body, "prompt": text}), texts))
    seconds = time.perf_counter() - started
    found = [json.loads(answer) if isinstance(answer, str | bytes) else answer for answer in answers]
    return [sum(int(answer["usage"]["completion_tokens"]) for answer in found), seconds]


def main() -> None:
    """Run the job."""
    job = json.load(sys.stdin)
    series = []
    for mode, draft, ngram in (
        ("plain", None, False),
        ("draft model", job["draft_gguf"], False),
        ("n-gram", None, True),
    ):
        server = start(job, 1, draft, ngram)
        ask(server, job["prompts"][:1], 4)
        calls = [ask(server, [text], job["tokens"]) for text in job["prompts"]]
        series.append({"mode": mode, "requests": 1, "calls": calls})
        del server
    server = start(job, len(job["batch"]), None)
    ask(server, job["prompts"][:1], 4)
    calls = [ask(server, job["batch"], job["batch_tokens"])]
    series.append({"mode": "plain", "requests": len(job["batch"]), "calls": calls})
    print(json.dumps({"engine": "llama.cpp F32", "series": series}))


if __name__ == "__main__":
    main()
