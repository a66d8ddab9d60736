"""Streams answers from a server, several at a time, and notes when their first and last tokens came."""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from sgl_spec.bench.load import TIMEOUT_S, Ask, sampling
from sgl_spec.errors import EngineError


@dataclass(frozen=True)
class Timed:
    """One streamed answer; seconds count from sending."""

    first_s: float
    last_s: float
    ids: tuple[int, ...]
    meta: dict[str, Any]

    @property
    def per_token_s(self) -> float:
        """Seconds per token after the first."""
        return (self.last_s - self.first_s) / max(len(self.ids) - 1, 1)


def stream_all(
    url: str, prompts: Sequence[str], options: dict[str, Any], how: Ask, at_once: int, key: str
) -> tuple[list[Timed], float]:
    """Answers to all prompts, at most `at_once` under way, and the seconds until the last one; raises EngineError."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as http, ThreadPoolExecutor(at_once) as pool:
        started = time.perf_counter()
        answers = list(pool.map(lambda prompt: _stream(http, prompt, options, how, key), prompts))
        return answers, time.perf_counter() - started


def _stream(http: httpx.Client, prompt: str, options: dict[str, Any], how: Ask, key: str) -> Timed:
    body = {"text": prompt, "stream": True, "extra_key": key, "sampling_params": sampling(how, options)}
    started = time.perf_counter()
    first = last = 0.0
    ids: list[int] = []
    meta: dict[str, Any] = {}
    try:
        with http.stream("POST", "/generate", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                raise EngineError(f"The server refused a request of the benchmark: {answer.read()[:300]!r}")
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise EngineError(f"The server failed during an answer: {chunk['error']}")
                last = time.perf_counter() - started
                first = first or last
                ids, meta = chunk.get("output_ids") or ids, chunk["meta_info"]
    except httpx.HTTPError as error:
        raise EngineError(f"The server stopped answering ({error!r}): see its log.") from None
    return Timed(first, last, tuple(ids), meta)
