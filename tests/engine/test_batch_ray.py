"""`sgl-spec batch --ray local`: the rows of the plain batch, errors as sentences, nothing left running."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from sgl_spec.batch.cli import batch
from sgl_spec.errors import EngineError
from tests.unit.fake_engine import FakeEngine

pytest.importorskip("ray.data", reason="ray is not installed: it is the extra sgl-spec[ray]")
pytestmark = [pytest.mark.engine, pytest.mark.long]

ENDS_WITHIN_S = 180.0  # after a kill, two of Ray's helper processes first try to reach its dead control store


def rows_file(folder: Path, rows: list[Any]) -> Path:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ray_processes(folder: Path) -> list[psutil.Process]:
    """Processes of a Ray whose driver runs in `folder`, which may be this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()) == folder and "ray" in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.Error, FileNotFoundError):
            continue
    return found


def assert_none_left(folder: Path) -> None:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while (left := ray_processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def test_the_same_rows_as_the_plain_batch(
    demo_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = [{"id": i, "question": f"What is {i} plus {i}?", "max_tokens": 8} for i in range(24)]
    rows[17]["question"] = None
    source, plain, other = rows_file(tmp_path, rows), tmp_path / "plain.jsonl", tmp_path / "other.jsonl"
    assert batch(source, output=plain, url=[demo_server.url], concurrency=4) == 1
    capfd.readouterr()
    assert batch(source, output=other, url=[demo_server.url], concurrency=4, ray="local", json_output=True) == 1
    assert other.read_bytes() == plain.read_bytes()
    shown = capfd.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["usage"]["requests"] == 23
    assert "ray" not in shown.err.lower().replace(str(tmp_path), "")
    assert_none_left(tmp_path)


def test_a_program_of_the_working_folder_and_a_server_that_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "ray_shout.py").write_text("def shout(row, server):\n    return row['word'].upper()\n")
    source, out = rows_file(tmp_path, [{"word": f"w{i}"} for i in range(20)]), tmp_path / "out.jsonl"
    with FakeEngine() as engine:
        url = engine.url
        assert batch(source, output=out, url=[url], program="ray_shout:shout", ray="local") == 0
    assert [json.loads(line)["output"] for line in out.read_text().splitlines()] == [f"W{i}" for i in range(20)]
    with pytest.raises(EngineError, match=f"No server answers at {url}"):
        batch(source, output=out, url=[url], program="ray_shout:shout", ray="local", overwrite=True)
    assert_none_left(tmp_path)


def test_ctrl_c_leaves_no_process_and_loses_no_row(tmp_path: Path) -> None:
    source, out = rows_file(tmp_path, [{"question": f"q{i}"} for i in range(24)]), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "sgl_spec.cli", "batch", str(source), "-o", str(out), "--ray", "local"]
    with FakeEngine(delay_s=0.5) as engine:
        running = subprocess.Popen([*command, "--url", engine.url], cwd=tmp_path, env=dict(os.environ))
        while not out.exists() or not out.read_bytes():
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=60) == 130
        assert_none_left(tmp_path)
        before = sum(engine.prompts.values())
        kept = out.read_bytes().count(b"\n")
        assert 1 <= kept < 24
        assert batch(source, output=out, url=[engine.url], concurrency=8) == 0
        assert sum(engine.prompts.values()) == before + 24 - kept
    assert [json.loads(line)["index"] for line in out.read_text().splitlines()] == list(range(24))


def run_there(folder: Path, source: Path, out: Path, url: str) -> None:
    """What a process of `batches` does: the command, in a folder of its own."""
    os.chdir(folder)
    batch(source, output=out, url=[url], concurrency=4, ray="local")


@pytest.fixture
def batches() -> Any:
    """Processes that have imported all that a batch needs: that is most of what a start costs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "ray.data", "programs.batch"])
    return context


def test_five_kills_end_in_the_file_of_the_plain_batch(demo_server: Any, batches: Any, tmp_path: Path) -> None:
    rows = [{"id": i, "question": f"What is {i} plus {i}?", "max_tokens": 8} for i in range(96)]
    source, plain, out = rows_file(tmp_path, rows), tmp_path / "plain.jsonl", tmp_path / "out.jsonl"
    assert batch(source, output=plain, url=[demo_server.url], concurrency=4) == 0
    moment, kept = random.Random(0), []
    for _ in range(5):
        running = batches.Process(target=run_there, args=(tmp_path, source, out, demo_server.url))
        running.start()
        while not out.exists() or out.read_bytes().count(b"\n") <= (kept[-1] if kept else 0):
            assert running.is_alive()
            time.sleep(0.02)
        time.sleep(moment.random())
        running.kill()
        running.join()
        assert running.exitcode == -signal.SIGKILL
        kept.append(out.read_bytes().count(b"\n"))
    assert kept == sorted(set(kept))
    assert kept[-1] < len(rows)
    run_there(tmp_path, source, out, demo_server.url)
    assert out.read_bytes() == plain.read_bytes()
    assert_none_left(tmp_path)
