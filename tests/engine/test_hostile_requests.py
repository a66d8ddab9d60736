"""Hostile requests to a real server: refused or answered, never a 5xx, and nobody else is disturbed."""

import base64
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from sgl_spec.config import RequestOptions
from tests.engine.conftest import PROMPTS, Server

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: it is in the extra dev")
pytestmark = [pytest.mark.engine, pytest.mark.long]

TOKENS = 4
EXAMPLES = 30
HUNDRED_MB = 100 * 2**20


def body(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def document() -> dict[str, Any]:
    """What of the server's API is ours, as OpenAPI: our options come from their own definition."""
    custom = body({"sgl_spec": RequestOptions.model_json_schema()}, ["sgl_spec"])
    sampling = body({"max_new_tokens": {"const": TOKENS}, "custom_params": custom}, ["max_new_tokens", "custom_params"])
    part = body({"type": {"const": "text"}, "text": {"type": "string"}}, ["type", "text"])
    content = {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}
    chat = {
        "model": {"const": "default"},
        "max_tokens": {"const": TOKENS},
        "stream": {"type": "boolean"},
        "messages": {"const": [{"role": "user", "content": "Say OK."}]},
        "prediction": body({"type": {"const": "content"}, "content": content}, ["type", "content"]),
        "custom_params": custom,
    }
    generate = {"text": {"const": "Say OK."}, "stream": {"type": "boolean"}, "sampling_params": sampling}
    answers = {"responses": {"200": {"description": "The answer"}}}

    def post(schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "post": {**answers, "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
        }

    return {
        "openapi": "3.1.0",
        "info": {"title": "sgl-spec", "version": "1"},
        "paths": {
            "/generate": post(body(generate, ["text", "sampling_params"])),
            "/v1/chat/completions": post(body(chat, ["model", "messages", "max_tokens", "prediction"])),
            "/sgl-spec/stats": {"get": answers},
            "/sgl-spec/": {"get": answers},
        },
    }


@pytest.fixture
def bystander(demo_server: Server) -> Iterator[None]:
    """Somebody else's requests all the while: each has the answer that it had before."""
    expected = demo_server.generate(PROMPTS[0], {"speculate": False})["output_ids"]
    found: list[list[int]] = []
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            found.append(demo_server.generate(PROMPTS[0])["output_ids"])

    thread = threading.Thread(target=ask)
    thread.start()
    yield
    end.set()
    thread.join()
    assert found
    assert all(ids == expected for ids in found)
    assert demo_server.generate(PROMPTS[0])["output_ids"] == expected


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("path", "method"), [("/generate", "POST"), ("/v1/chat/completions", "POST")])
def test_no_form_of_our_options_is_an_error_of_the_server(
    demo_server: Server, bystander: None, path: str, method: str, mode: str
) -> None:
    operation = schemathesis.openapi.from_dict(document())[path][method]
    statuses = set()

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def fuzz(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body["max_tokens"] = TOKENS
            if isinstance(case.body.get("sampling_params"), dict):
                case.body["sampling_params"]["max_new_tokens"] = TOKENS
        answer = case.call(base_url=demo_server.url, timeout=120)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, answer.text[:500]
        assert b"Traceback" not in answer.content

    fuzz()
    assert statuses & ({200} if mode == "positive" else {400, 422}), statuses


@pytest.mark.parametrize("path", ["/sgl-spec/stats", "/sgl-spec/"])
def test_our_routes_answer_whatever_is_asked_of_them(demo_server: Server, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
        for query in ("", "?a[]=1&__proto__=x", "?%00=%ff", "?" + "q" * 4000):
            answer = httpx.request(method, demo_server.url + path + query, content=b"\xff{", timeout=60)
            assert answer.status_code < 500
            assert (answer.status_code == 200) == (method == "GET")


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
def test_a_prediction_of_100_mb_is_refused(demo_server: Server, bystander: None, path: str) -> None:
    huge = "a" * HUNDRED_MB
    if path == "/generate":
        sampling = {"max_new_tokens": TOKENS, "custom_params": {"sgl_spec": {"prediction": huge}}}
        asked: dict[str, Any] = {"text": "a", "sampling_params": sampling}
    else:
        asked = {"model": "default", "max_tokens": TOKENS, "messages": [{"role": "user", "content": "a"}]}
        asked["prediction"] = {"type": "content", "content": huge}
    answer = httpx.post(demo_server.url + path, json=asked, timeout=300)
    assert answer.status_code == 400
    assert f"has {HUNDRED_MB} characters; send at most 1000000" in answer.text
    assert len(answer.text) < 2000


class Canary:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_that_is_sent_is_evaluated(demo_server: Server, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    pickled = base64.b64encode(pickle.dumps(Canary(canary))).decode()
    expected = demo_server.generate(PROMPTS[0], {"speculate": False})["output_ids"]
    names = ["{{7*7}}", "../../../etc/passwd", f"$(touch {canary})", f"__import__('os').mknod('{canary}')", "\x00\n"]
    for name in names:
        answer = demo_server.generate(PROMPTS[0], {"program": name, "namespace": name, "prediction": name + pickled})
        assert answer["output_ids"] == expected
    assert set(names) <= demo_server.runtime.stats()["programs"].keys()
    assert not canary.exists()


def test_one_tenants_text_shows_in_no_other_tenants_acceptance(demo_server: Server) -> None:
    """The cache alone guesses: what it proposes and what is accepted is all that a tenant can see of it."""
    from_cache = {"draft_model": False, "prompt_lookup": False, "controller": "fixed", "num_speculative_tokens": 4}

    def proposed(namespace: str) -> int:
        answer = demo_server.generate(PROMPTS[2], {**from_cache, "namespace": namespace}, max_new_tokens=32)
        count: int = answer["meta_info"]["sgl_spec"]["num_draft_tokens"]
        return count

    assert proposed("tenant a") == 0
    assert proposed("tenant a") > 0
    assert proposed("tenant b") == 0
    assert proposed("tenant b") > 0
