"""`sgl-spec serve` ends with all its processes and without a traceback when it is interrupted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sgl_spec.models import demo_target
from sgl_spec.orphans import alive
from sgl_spec.preflight import free_port
from tests.engine.conftest import up

pytestmark = pytest.mark.engine
START_S, STOP_S = 300.0, 60.0


@pytest.mark.parametrize("interrupt", [os.kill, os.killpg], ids=["the server alone", "as a terminal does"])
def test_an_interrupted_server_leaves_nothing(interrupt: Callable[[int, int], None], tmp_path: Path) -> None:
    port, said = free_port(), tmp_path / "log.txt"
    command = [sys.executable, "-m", "sgl_spec.cli", "serve", "--model-path", str(demo_target()), "--port", str(port)]
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S
        while not up(f"http://127.0.0.1:{port}"):
            assert process.poll() is None, said.read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        interrupt(process.pid, signal.SIGINT)
        assert process.wait(timeout=STOP_S) == 130
        assert not alive(process.pid)
        assert "Traceback" not in said.read_text()
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
