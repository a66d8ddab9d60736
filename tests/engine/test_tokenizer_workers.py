"""Several HTTP and tokenizer processes before one scheduler: each has our checks, our reports and our routes."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sgl_spec.models import demo_draft
from tests.engine.conftest import PROMPTS, Server, start

pytestmark = [pytest.mark.engine, pytest.mark.long]

TRIES = 8  # requests spread over two processes: all to one of them has chance 2 ** -7


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Server]:
    yield from start(demo_draft(), controller="throughput", num_speculative_tokens=5, tokenizer_worker_num=2)


def posts(server: Server, path: str, body: dict[str, Any]) -> list[httpx.Response]:
    """The same request over `TRIES` connections at once."""
    with ThreadPoolExecutor(TRIES) as threads:
        return list(threads.map(lambda _: httpx.post(server.url + path, json=body, timeout=300), range(TRIES)))


def test_answers_and_reports(two_workers: Server, plain_server: Server) -> None:
    def ask(prompt: str) -> dict[str, Any]:
        answer: dict[str, Any] = two_workers.generate(prompt, {"program": "workers"})
        return answer

    with ThreadPoolExecutor(TRIES) as threads:
        answers = list(threads.map(ask, PROMPTS))
    assert [a["text"] for a in answers] == [plain_server.generate(prompt)["text"] for prompt in PROMPTS]
    for answer in answers:
        meta, spec = answer["meta_info"], answer["meta_info"]["sgl_spec"]
        rounds = spec["num_spec_steps"] + spec["num_plain_steps"]
        assert rounds + spec["num_accepted_draft_tokens"] >= meta["completion_tokens"] - 1  # the first is the prefill's
    scheduler = httpx.get(f"{two_workers.url}/sgl-spec/stats", timeout=60).json()["schedulers"][0]
    assert scheduler["stats"]["programs"]["workers"]["requests"] == len(PROMPTS)
    assert two_workers.runtime.stats()["programs"]["workers"]["requests"] == len(PROMPTS)


def test_every_process_checks_requests(two_workers: Server) -> None:
    wrong = {"text": "a", "sampling_params": {"max_new_tokens": 4, "custom_params": {"sgl_spec": {"speculat": 1}}}}
    for answer in posts(two_workers, "/generate", wrong):
        assert answer.status_code == 400
        assert "has no option 'speculat'" in answer.text
    for answer in posts(two_workers, "/generate", {"input_ids": [], "sampling_params": {"max_new_tokens": 4}}):
        assert answer.status_code == 400


def test_every_process_reads_predictions(two_workers: Server) -> None:
    body = {
        "model": "default", "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": "Say OK."}],
        "prediction": {"type": "content", "content": "one two three"},
    }  # fmt: skip
    for answer in posts(two_workers, "/v1/chat/completions", body):
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] > 0
    assert httpx.get(f"{two_workers.url}/sgl-spec/", timeout=60).status_code == 200
