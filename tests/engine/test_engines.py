"""A program on Transformers, on a completions endpoint, and on one endpoint that drafts for another."""

from typing import Any

import pytest

import sgl_spec
from programs.chat import chat
from programs.engine_openai import ChatBackend, Model
from programs.engine_transformers import TransformersBackend
from programs.engine_vllm import CompletionsBackend
from programs.state import text_of
from sgl_spec.batch.endpoint import CountingEndpoint
from sgl_spec.models import demo_draft, demo_target

pytestmark = [pytest.mark.engine, pytest.mark.long]

QUESTION = "Name the three primary colours."
MAX_TOKENS = 32


def answer(backend: Any) -> str:
    return text_of(chat.run(QUESTION, max_tokens=MAX_TOKENS, backend=backend), "answer")


@pytest.fixture(scope="module")
def plainly(demo_server: Any) -> str:
    """What our server says without guesses."""
    with sgl_spec.options(speculate=False):
        return answer(CountingEndpoint(demo_server.url))


def test_transformers_drafts_and_says_the_same(plainly: str) -> None:
    backend = TransformersBackend(str(demo_target()), str(demo_draft()))
    assert answer(backend) == plainly
    spent = backend.stats()
    assert spent["proposed"] > 0
    assert 1 < spent["completion_tokens"] <= MAX_TOKENS


def test_a_completions_endpoint_says_the_same(demo_server: Any, plainly: str) -> None:
    backend = CompletionsBackend(demo_server.url, str(demo_target()))
    assert answer(backend) == plainly
    assert backend.stats()["completion_tokens"] <= MAX_TOKENS


def test_one_endpoint_drafts_for_another(demo_server: Any, plain_server: Any, plainly: str) -> None:
    draft = Model(plain_server.url, "default", input_price=1.0, output_price=2.0)
    backend = ChatBackend(Model(demo_server.url, "default", input_price=10.0, output_price=30.0), draft)
    assert answer(backend) == plainly
    spent = backend.stats()
    target, drafted = spent["target"], spent["draft"]
    assert spent["accepted_prediction_tokens"] >= target["completion_tokens"] - 2
    assert drafted["completion_tokens"] == target["completion_tokens"]
    assert target["cost"] == pytest.approx((target["prompt_tokens"] * 10 + target["completion_tokens"] * 30) / 1e6)
    assert spent["cost"] == pytest.approx(target["cost"] + drafted["cost"])
    assert drafted["cost"] > 0
