"""`sgl-spec batch` on the real engine: one bad row, five kills, the same file in the end."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sgl_spec.batch.cli import batch

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_five_kills_and_a_bad_row_of_fifty(demo_server: Any, tmp_path: Path) -> None:
    rows = [{"id": i, "question": f"What is {i} plus {i}?", "max_tokens": 8} for i in range(50)]
    rows[17]["question"] = None
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert batch(source, output=whole, url=[demo_server.url], concurrency=4) == 1
    moment, finished = random.Random(0), 0
    for _ in range(5):
        child = os.fork()
        if child == 0:
            batch(source, output=out, url=[demo_server.url], concurrency=4)
            os._exit(0)
        finished += moment.randint(1, 8)
        while not out.exists() or out.read_bytes().count(b"\n") < finished:
            time.sleep(0.005)
        time.sleep(moment.random() / 4)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        finished = out.read_bytes().count(b"\n")
    assert batch(source, output=out, url=[demo_server.url], concurrency=4) == 1
    assert out.read_bytes() == whole.read_bytes()
    records = [json.loads(line) for line in whole.read_text().splitlines()]
    assert [record["index"] for record in records if record["error"]] == [17]
    assert len(records) == 50


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
