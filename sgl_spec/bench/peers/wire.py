"""How a peer's process is asked: one JSON line per question on its stdin, one per answer on its stdout.

Runs in the peers' own environments: standard library only. The first question is the job; its answer is
{"engine", "modes": {mode: [numbers of requests]}, "failed": {mode: sentence}}. Each later question is
{"mode", "texts", "tokens"}, its answer {"tokens", "seconds", "texts"}. What the engine raises is answered with
{"error"} and ends the process.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Decode = Callable[[str, list[str], int], tuple[int, list[str]]]
"""(mode, prompts, new tokens of each) -> (generated tokens, generated texts)."""


class Loaded(NamedTuple):
    """An engine that is ready: its name with version, how it decodes, its modes, and why others are not there."""

    engine: str
    decode: Decode
    modes: dict[str, list[int]]
    failed: Mapping[str, str] = MappingProxyType({})


def told(error: Exception) -> str:
    """An error's kind and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"


def serve(load: Callable[[dict[str, Any]], Loaded]) -> None:
    """Load the job's models, then answer until stdin closes; what the engine prints itself goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        loaded = load(json.loads(sys.stdin.readline()))
        say({"engine": loaded.engine, "modes": loaded.modes, "failed": dict(loaded.failed)})
        for line in sys.stdin:
            question = json.loads(line)
            started = time.perf_counter()
            tokens, texts = loaded.decode(question["mode"], question["texts"], question["tokens"])
            say({"tokens": tokens, "seconds": time.perf_counter() - started, "texts": texts})
    except Exception as error:
        say({"error": told(error)})
        raise
