"""llama.cpp's server in this process (xllamacpp), F32 weights and KV: plain, with the draft model, with n-grams.

The job's `target_gguf` and `draft_gguf` are F32 files.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import xllamacpp

from sgl_spec.bench.peers.wire import Loaded, serve

MODES = ("plain", "draft model", "n-gram")
WARM_TOKENS = 4


def start(job: dict[str, Any], slots: int, mode: str) -> Any:
    """Load the model with `slots` parallel requests."""
    params = xllamacpp.CommonParams()
    params.model.path = job["target_gguf"]
    params.n_parallel = slots
    params.n_ctx = 1024 * slots
    params.warmup = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    kinds = xllamacpp.common_speculative_type
    if mode == "draft model":
        own = params.speculative.draft
        own.mparams.path = job["draft_gguf"]
        own.cpuparams.n_threads = own.cpuparams_batch.n_threads = job["threads"]
        own.cache_type_k = own.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    elif mode == "n-gram":
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    return xllamacpp.Server(params)


def ask(server: Any, texts: list[str], tokens: int) -> tuple[int, list[str]]:
    """Send texts at once; return (tokens, texts)."""
    body = {"n_predict": tokens, "temperature": 0.0, "top_k": 1, "ignore_eos": True, "cache_prompt": False}
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: server.handle_completions({**body, "prompt": text}), texts))
    found = [json.loads(answer) if isinstance(answer, str | bytes) else answer for answer in answers]
    tokens = sum(int(answer["usage"]["completion_tokens"]) for answer in found)
    return tokens, [answer["choices"][0]["text"] for answer in found]


def load(job: dict[str, Any]) -> Loaded:
    """A server per mode and number of requests; idle ones wait, and the weights' file is mapped once."""
    sizes = [1, len(job["batch"])]
    servers = {(mode, slots): start(job, slots, mode) for mode in MODES for slots in sizes}
    for server in servers.values():
        ask(server, ["Hello"], WARM_TOKENS)

    def decode(mode: str, texts: list[str], tokens: int) -> tuple[int, list[str]]:
        return ask(servers[mode, len(texts)], texts, tokens)

    return Loaded(f"llama.cpp F32 (xllamacpp {version('xllamacpp')})", decode, dict.fromkeys(MODES, sizes))


if __name__ == "__main__":
    serve(load)
