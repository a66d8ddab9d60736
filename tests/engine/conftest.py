"""Servers that the engine tests share: one per draft and per session, on the demo target."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sgl_spec.models import cache_root, demo_draft, demo_target
from sgl_spec.runtime import Runtime
from tests.engine import drafts

K_MAX = 8
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a small village,",
    "1, 2, 3, 4, 5,",
    "Repeat this sentence: This is a test. This is a test.",
    "import numpy as np\n\ndef mean(values):",
    "The three primary colours are",
    "Q: What is 2 + 2?\nA:",
    "Dear Sir or Madam,",
    "你好，世界",
    "A list of fruits:\n- apple\n- banana\n-",
    "SELECT name FROM users WHERE",
    "The quick brown fox jumps over the lazy dog. " * 4,
    "Water boils at",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nSay OK.<|im_end|>\n<|im_start|>assistant\n",
    '{"name": "Ada", "age":',
    "In 1969, the first",
    "for i in range(10):\n    print(",
    "A robot may not injure a human being",
]


@dataclass
class Server:
    """A running server and a short way to ask it."""

    runtime: Runtime
    k: int = K_MAX  # what `guess` asks for

    @property
    def guess(self) -> dict[str, Any]:
        """Options: guess k tokens in every round."""
        return {"controller": "fixed", "num_speculative_tokens": self.k}

    @property
    def url(self) -> str:
        return self.runtime.url

    @property
    def endpoint(self) -> Any:
        return self.runtime

    def generate(self, text: Any, options: dict | None = None, **params: Any) -> Any:
        """POST /generate with greedy defaults; returns the JSON (a list for a list of prompts)."""
        sampling = {"temperature": 0.0, "max_new_tokens": 24, **params}
        if options is not None:
            sampling["custom_params"] = {"sgl_spec": options}
        body = {"text": text, "sampling_params": sampling}
        for key in ("return_logprob", "top_logprobs_num", "stream", "logprob_start_len"):
            if key in sampling:
                body[key] = sampling.pop(key)
        answer = httpx.post(f"{self.url}/generate", json=body, timeout=300)
        answer.raise_for_status()
        return answer.json()


def start(draft: Path | list[Path] | None, **server_args: Any) -> Iterator[Server]:
    settings = {"num_speculative_tokens": K_MAX, "controller": "fixed", **server_args}
    with Runtime(demo_target(), draft, **settings) as runtime:
        yield Server(runtime)


def up(url: str) -> bool:
    """Whether the server at this address says that it is well."""
    try:
        return httpx.get(f"{url}/health", timeout=10.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="session")
def plain_server() -> Iterator[Server]:
    """The engine without a draft: the reference."""
    yield from start(None, draft_cache=False, prediction=False)


@pytest.fixture(scope="session")
def self_server() -> Iterator[Server]:
    """The target drafts for itself: every guess must be accepted."""
    yield from start(demo_target(), draft_cache=False)


@pytest.fixture(scope="session")
def bad_server() -> Iterator[Server]:
    """A draft of random weights: every guess is wrong."""
    yield from start(drafts.random_draft(demo_target(), cache_root() / "tests" / "random-draft"), draft_cache=False)


@pytest.fixture(scope="session")
def demo_server() -> Iterator[Server]:
    """The demo pair as users start it: adaptive, all sources."""
    yield from start(demo_draft(), controller="throughput", enable_metrics=True)


@pytest.fixture(scope="session")
def reference() -> list[list[int]]:
    """The greedy tokens that Transformers, in float32, says after PROMPTS."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_target())
    model = AutoModelForCausalLM.from_pretrained(demo_target(), dtype=torch.float32)
    said = []
    for prompt in PROMPTS:
        given = tokenizer(prompt, return_tensors="pt").input_ids
        said.append(model.generate(given, max_new_tokens=24, do_sample=False)[0, given.shape[1] :].tolist())
    return said


@pytest.fixture(scope="session")
def odd_server() -> Iterator[Server]:
    """The demo pair without a radix cache, prompts prefilled in chunks of 64."""
    yield from start(demo_draft(), disable_radix_cache=True, chunked_prefill_size=64)
