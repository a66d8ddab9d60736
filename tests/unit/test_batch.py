"""`sgl-spec batch` against a server in this process: records, errors, retries, kills, several servers."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from tenacity import wait_none

from sgl_spec.batch import on_ray, runner
from sgl_spec.batch.cli import batch
from sgl_spec.batch.rows import read_rows
from sgl_spec.batch.runner import RowRunner, ServersGoneError, run_rows
from sgl_spec.batch.settings import Settings
from sgl_spec.cli import main
from sgl_spec.errors import ConfigError
from tests.unit.fake_engine import FakeEngine, answer_to

ROOT = Path(__file__).parents[2]


@sgl.function
def two_steps(s: Any, topic: str, places: int = 2) -> None:
    s += "about " + topic
    s += sgl.gen("first", max_tokens=8)
    forks = s.fork(places)
    forks += lambda at: f"place {at}"
    forks += sgl.gen("place", max_tokens=8)
    s["places"] = [fork["place"] for fork in forks]


def shout(row: dict[str, Any], server: Any) -> str:
    return str(row["word"]).upper()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WAIT", wait_none())


def rows_file(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def run(source: Path, out: Path, *urls: str, **options: Any) -> int:
    return batch(source, output=out, url=list(urls), **options)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_bad_row_of_fifty_is_one_error_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Any] = [{"id": f"r{i}", "question": f"question {i}"} for i in range(50)]
    rows[17] = {"id": "r17", "question": 17}
    source, out = rows_file(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    with FakeEngine() as engine:
        assert run(source, out, engine.url, json_output=True, input_price=1.0) == 1
    found = records(out)
    assert [record["id"] for record in found] == [f"r{i}" for i in range(50)]
    assert [record["index"] for record in found if record["error"]] == [17]
    assert found[17]["error"]["type"] == "invalid_row"
    assert 'the row needs a text under "question", not 17' in found[17]["error"]["message"]
    assert all(record["output"]["answer"].startswith("answer-") for record in found if not record["error"])
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["done"], summary["failed"], summary["undone"]) == (50, 1, 0)
    assert summary["usage"]["draft_acceptance_rate"] == pytest.approx(0.75)
    assert summary["cost"] > 0


def test_repeating_the_command_runs_nothing_again(tmp_path: Path) -> None:
    source = rows_file(tmp_path / "in.jsonl", [{"question": f"q{i}"} for i in range(5)] + ["not json"])
    out = tmp_path / "out.jsonl"
    with FakeEngine() as engine:
        assert run(source, out, engine.url) == 1
        first = out.read_bytes()
        assert run(source, out, engine.url) == 1
        assert out.read_bytes() == first
        assert set(engine.prompts.values()) == {1}
        assert run(source, out, engine.url, overwrite=True) == 1
        assert set(engine.prompts.values()) == {2}


def test_retries_only_what_may_pass(tmp_path: Path) -> None:
    source = rows_file(tmp_path / "in.jsonl", [{"question": word} for word in ("busy", "wrong", "broken", "fine")])
    out = tmp_path / "out.jsonl"
    with FakeEngine() as engine:
        engine.fail = {"busy": [503, 2], "wrong": [400, 9], "broken": [500, 9]}
        assert run(source, out, engine.url, retries=2) == 1
        busy, wrong, broken, fine = records(out)
        assert busy["error"] is None
        assert wrong["error"] == {"type": "ServerError", "message": "told to fail on wrong", "attempts": 1}
        assert broken["error"]["attempts"] == 3
        assert fine["error"] is None
        engine.fail = {}
        assert run(source, out, engine.url, retry_errors=True) == 0
    assert [record["error"] for record in records(out)] == [None] * 4


def test_another_server_takes_over(tmp_path: Path) -> None:
    source = rows_file(tmp_path / "in.jsonl", [{"question": f"q{i}"} for i in range(8)])
    with FakeEngine() as one, FakeEngine() as two:
        one.fail = {"q": [500, 99]}
        assert run(source, tmp_path / "out.jsonl", one.url, two.url) == 0
        assert sum(two.prompts.values()) == 8


def test_stops_with_one_sentence_when_no_server_is_left(tmp_path: Path) -> None:
    source, out = rows_file(tmp_path / "in.jsonl", [{"question": f"q{i}"} for i in range(6)]), tmp_path / "out.jsonl"
    with FakeEngine() as engine:
        run_row = RowRunner.connect(Settings("chat", (engine.url,), retries=1))
    rows = list(read_rows(source))
    with pytest.raises(ServersGoneError, match="No server answers any more"):
        list(run_rows(iter(rows), run_row, 2))
    with pytest.raises(runner.EngineError, match="No server answers at"):
        run(source, out, engine.url)
    assert out.read_bytes() == b""
    with FakeEngine() as engine:
        assert run(source, out, engine.url) == 0
    assert len(records(out)) == 6


def test_own_programs(tmp_path: Path) -> None:
    rows = [{"topic": "tea", "sgl_spec": {"num_speculative_tokens": 3}}, {"topic": "x", "place": 1}, {}]
    source, out = rows_file(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    with FakeEngine() as engine:
        assert run(source, out, engine.url, program="tests.unit.test_batch:two_steps", stats=True) == 1
        options = [
            body["sampling_params"].get("custom_params", {}).get("sgl_spec")
            for body in engine.bodies
            if body["sampling_params"]["max_new_tokens"]
        ]
    assert options == [{"program": "tests.unit.test_batch:two_steps", "num_speculative_tokens": 3}] * 3
    good, unknown, missing = records(out)
    assert good["output"]["first"].startswith("answer-")
    assert len(good["output"]["places"]) == 2
    assert good["sgl_spec"]["requests"] == 3
    assert "has no option 'place' (did you mean 'places'?)" in unknown["error"]["message"]
    assert "the row has no 'topic'" in missing["error"]["message"]
    source = rows_file(tmp_path / "words.jsonl", [{"word": "tea"}])
    with FakeEngine() as engine:
        assert run(source, tmp_path / "w.jsonl", engine.url, program="tests.unit.test_batch:shout") == 0
    assert records(tmp_path / "w.jsonl")[0]["output"] == "TEA"


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("chatt", "program='chatt' is unknown \\(did you mean 'chat'\\?\\)"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("tests.unit.test_batch:two_step", "has no 'two_step' \\(did you mean 'two_steps'\\?\\)"),
        ("tests.unit.test_batch:ROOT", "is no @sgl.function"),
    ],
)
def test_wrong_programs_are_refused(program: str, sentence: str, tmp_path: Path) -> None:
    source = rows_file(tmp_path / "in.jsonl", [{"question": "q"}])
    with FakeEngine() as engine, pytest.raises(ConfigError, match=sentence):
        run(source, tmp_path / "out.jsonl", engine.url, program=program)


def test_openai_batch_files(tmp_path: Path) -> None:
    def row(name: str, **more: Any) -> dict[str, Any]:
        body = {"model": "m", "messages": [{"role": "user", "content": f"hi {name}"}]}
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body, **more}

    rows = [row("a"), row("b", url="/v1/files"), row("c", body={"stream": True})]
    source, out = rows_file(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    with FakeEngine() as engine:
        assert run(source, out, engine.url) == 1
        with pytest.raises(ConfigError, match="exclude each other"):
            run(source, tmp_path / "x.jsonl", engine.url, program="chat")
    good, wrong_url, stream = records(out)
    assert (good["custom_id"], good["error"]) == ("a", None)
    assert good["response"]["status_code"] == 200
    assert good["response"]["body"]["choices"][0]["message"]["content"].startswith("answer-")
    assert good["usage"] == {"prompt_tokens": 3, "completion_tokens": 6}
    assert wrong_url["response"] is None
    assert "/v1/files" in wrong_url["error"]["message"]
    assert "without stream" in stream["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "IN"], "is the input"),
        (["-o", "absent/out.jsonl"], "lies in no existing folder"),
        (["-o", "OUT", "--url", "http://x", "--model-path", "m"], "exclude each other"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = rows_file(tmp_path / "in.jsonl", [{"question": "q"}])
    named = {"IN": str(source), "OUT": str(tmp_path / "out.jsonl")}
    assert main(["batch", str(source), *[named.get(word, word) for word in arguments]]) == 2
    assert sentence in capsys.readouterr().err


def test_five_kills_change_nothing(tmp_path: Path) -> None:
    """SIGKILL after a seeded number of rows, five times, then a run to the end: the same file as in one run."""
    source = rows_file(tmp_path / "in.jsonl", [{"question": f"question {i}"} for i in range(60)])
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    chance = random.Random(7)
    with FakeEngine() as quick:
        assert run(source, whole, quick.url) == 0
    with FakeEngine(delay_s=0.01) as engine:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                run(source, out, engine.url, concurrency=4)
                os._exit(0)
            goal = (out.read_bytes().count(b"\n") if out.exists() else 0) + chance.randrange(2, 9)
            while not out.exists() or out.read_bytes().count(b"\n") < goal:
                time.sleep(0.002)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        done = out.read_bytes().count(b"\n")
        assert 5 <= done < 60
        assert run(source, out, engine.url) == 0
    assert out.read_bytes() == whole.read_bytes()


def test_an_interrupt_keeps_the_running_rows(tmp_path: Path) -> None:
    source, out = rows_file(tmp_path / "in.jsonl", [{"question": f"q{i}"} for i in range(30)]), tmp_path / "out.jsonl"

    def reply(prompt: str) -> str:
        if "q5" in prompt:
            os.kill(os.getpid(), signal.SIGINT)
        return answer_to(prompt)

    before = signal.getsignal(signal.SIGINT)
    with FakeEngine(reply=reply) as engine, pytest.raises(KeyboardInterrupt):
        run(source, out, engine.url, concurrency=2)
    assert signal.getsignal(signal.SIGINT) is before
    done = {record["index"] for record in records(out)}
    assert 5 in done
    assert len(done) < 30
    assert len(done) == sum(engine.prompts.values())
    with FakeEngine() as engine:
        assert run(source, out, engine.url) == 0
        assert sum(engine.prompts.values()) == 30 - len(done)


def test_missing_extras_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = rows_file(tmp_path / "in.jsonl", [{"question": "q"}])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with FakeEngine() as engine:
        with pytest.raises(ConfigError, match="package sglang-router, which is missing: pip install"):
            run(source, tmp_path / "a.jsonl", engine.url, router=2)
        with pytest.raises(ConfigError, match="package ray, which is missing: pip install"):
            run(source, tmp_path / "b.jsonl", engine.url, ray="local")


def test_a_block_on_ray_gives_its_rows_and_then_what_ended_the_batch(tmp_path: Path) -> None:
    source = rows_file(tmp_path / "in.jsonl", [{"word": "a"}, {"word": 7}, {"word": "b"}])
    block = {"row": [json.dumps(asdict(row)) for row in read_rows(source)]}
    with FakeEngine() as engine:
        settings = Settings("tests.unit.test_batch:shout", (engine.url,))
        done = [json.loads(text)["record"] for text in on_ray.run_block(block, settings, 2)["done"]]
    assert {record["index"]: record["output"] for record in done} == {0: "A", 1: "7", 2: "B"}
    gone = on_ray.run_block(block, Settings("tests.unit.test_batch:shout", (engine.url, engine.url)), 2)["done"]
    assert [list(json.loads(text)) for text in gone] == [[on_ray.GONE]]


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:port"])
def test_no_ray_cluster_is_one_sentence(address: str) -> None:
    rows = iter(())
    settings = Settings("tests.unit.test_batch:shout", ())
    with pytest.raises(ConfigError, match=f"ray={address} is no Ray cluster that can be joined"):
        next(on_ray.run_on_ray(rows, settings, 8, address, threading.Event()))


def test_help_needs_no_engine() -> None:
    code = "import sys; from sgl_spec.cli import main; main(['batch', '--help']); print('sglang' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=dict(os.environ)
    )
    assert result.stdout.splitlines()[-1] == "False"
    assert "IN.jsonl" in result.stdout
