"""`sgl-spec batch` on the real engine: one bad row, a kill in the middle, the same file in the end."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sgl_spec.batch.cli import batch

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_a_killed_batch_ends_as_an_uninterrupted_one(demo_server: Any, tmp_path: Path) -> None:
    rows = [{"id": i, "question": f"What is {i} plus {i}?", "max_tokens": 8} for i in range(6)]
    rows[2]["question"] = None
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert batch(source, output=whole, url=[demo_server.url], concurrency=2) == 1
    child = os.fork()
    if child == 0:
        batch(source, output=out, url=[demo_server.url], concurrency=1)
        os._exit(0)
    while not out.exists() or out.read_bytes().count(b"\n") < 2:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert batch(source, output=out, url=[demo_server.url], concurrency=2) == 1
    assert out.read_bytes() == whole.read_bytes()
    records = [json.loads(line) for line in whole.read_text().splitlines()]
    assert [record["error"] is None for record in records] == [True, True, False, True, True, True]


def test_an_openai_file_is_answered_in_its_own_form(demo_server: Any, tmp_path: Path) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 4}
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {**body, "temperature": 0}}
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps(row) + "\n")
    assert batch(source, output=out, url=[demo_server.url]) == 0
    record = json.loads(out.read_text())
    assert record["custom_id"] == "a"
    assert record["response"]["status_code"] == 200
    assert record["usage"]["completion_tokens"] <= 4
