"""`sgl-spec serve` from a YAML file with a key: who may ask, a forced tool call, a stop that lets an answer end."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from sgl_spec.models import demo_draft, demo_target
from sgl_spec.orphans import alive
from sgl_spec.preflight import free_port
from tests.engine.conftest import up

pytestmark = [pytest.mark.engine, pytest.mark.long]

KEY = "open sesame"
START_S = 300.0
STOP_S = 60.0
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}},
            "required": ["town", "days"],
            "additionalProperties": False,
        },
    },
}
ASK: Any = [{"role": "user", "content": "What is the weather in Oslo for 3 days?"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: Any) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The command's process, in a group of its own, and its address."""
    folder, port = tmp_path_factory.mktemp("serve"), free_port()
    settings = {
        "model-path": str(demo_target()),
        "draft_model_path": str(demo_draft()),
        "api_key": KEY,
        "enable_metrics": True,
        "tool-call-parser": "qwen25",
        "constrained_json_disable_any_whitespace": True,
        "max_total_tokens": 2048,
        "num_speculative_tokens": 8,
    }
    (folder / "server.yaml").write_text(json.dumps(settings))  # JSON is YAML
    command = [sys.executable, "-m", "sgl_spec.cli", "serve", "--config", str(folder / "server.yaml")]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    try:
        while not up(url):
            assert process.poll() is None, (folder / "log.txt").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield process, url
    finally:
        process.kill()
        process.wait()


def client(url: str, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=300, max_retries=0)


def ask(url: str, speculate: bool = True, **given: Any) -> Any:
    extra = {"custom_params": {"sgl_spec": {"speculate": speculate}}}
    body = {"model": "default", "messages": ASK, "temperature": 0, "max_tokens": 48, "extra_body": extra, **given}
    return client(url).chat.completions.create(**body)


def test_the_key_opens_what_it_should(served: Any) -> None:
    _, url = served
    with pytest.raises(openai.AuthenticationError):
        client(url, "wrong").chat.completions.create(model="default", messages=ASK, max_tokens=2)
    assert ask(url, max_tokens=2).usage.completion_tokens == 2
    assert httpx.get(f"{url}/sgl-spec/stats").status_code == httpx.codes.UNAUTHORIZED
    assert httpx.get(f"{url}/sgl-spec/").status_code == httpx.codes.OK
    assert "sgl_spec_rounds_total" in httpx.get(f"{url}/metrics").text


def test_nobody_asked_for_remote_code(served: Any) -> None:
    _, url = served
    info = httpx.get(f"{url}/server_info", headers={"Authorization": f"Bearer {KEY}"}).json()
    assert info["trust_remote_code"] is False
    assert info["host"] == "127.0.0.1"


def test_a_named_tool_is_called(served: Any) -> None:
    """The demo target knows no tools by itself; the grammar makes it call one."""
    _, url = served
    choice = {"type": "function", "function": {"name": "weather"}}
    said = [
        ask(url, speculate, tools=[WEATHER], tool_choice=choice, max_tokens=128).choices[0]
        for speculate in (True, False)
    ]
    assert said[0].message.tool_calls, said[0]
    calls = [choice.message.tool_calls[0].function for choice in said]
    assert calls[0] == calls[1]
    assert calls[0].name == "weather"
    assert json.loads(calls[0].arguments)


def test_tools_that_are_not_called_change_no_text(served: Any) -> None:
    _, url = served
    texts = [ask(url, speculate, tools=[WEATHER]).choices[0].message.content for speculate in (True, False)]
    assert texts[0] == texts[1]
    assert texts[0]


def test_a_stop_lets_the_running_answer_end(served: Any) -> None:
    process, url = served
    text = ask(url, max_tokens=200, extra_body={"ignore_eos": True}).choices[0].message.content
    first, seen = threading.Event(), []

    def read() -> None:
        given: Any = {"max_tokens": 200, "stream": True, "extra_body": {"ignore_eos": True}}
        for chunk in ask(url, **given):
            first.set()
            seen.extend(choice.delta.content or "" for choice in chunk.choices)

    reader = threading.Thread(target=read)
    reader.start()
    assert first.wait(START_S)
    process.send_signal(signal.SIGTERM)
    reader.join(START_S)
    assert "".join(seen) == text
    assert process.wait(STOP_S) == 0
    deadline = time.monotonic() + STOP_S
    while alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(process.pid)
