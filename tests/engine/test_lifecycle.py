"""However a `Runtime` ends, no process of it is left and its port is free."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sgl_spec.errors import EngineError
from sgl_spec.models import demo_target
from sgl_spec.orphans import alive
from sgl_spec.preflight import free_port
from sgl_spec.runtime import Runtime

pytestmark = [pytest.mark.engine, pytest.mark.long]

END_S = 10.0  # a server must be gone this soon after its owner

OWNER = """
import sys
from sgl_spec.models import demo_target
from sgl_spec.serve import plan_launch
from sgl_spec.server_process import ServerProcess

with ServerProcess(plan_launch({"model_path": str(demo_target()), "port": int(sys.argv[1])})) as server:
    print(server.pid, flush=True)
    server.wait()
    print("up", flush=True)
    sys.stdin.read()
"""


class Owner:
    """A process that owns a server, and what is known of the server."""

    def __init__(self) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.server = int(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, signal_number: int) -> None:
        self.process.send_signal(signal_number)
        self.process.wait(timeout=4 * END_S)


def gone(owner: Owner) -> bool:
    """Whether the owner's server ends within `END_S`; its port is free once the kernel has closed its sockets."""
    deadline = time.monotonic() + END_S
    while alive(owner.server) or not is_free(owner.port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0 and probe.bind(("127.0.0.1", port)) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_owner_ends_while_the_server_loads(number: int) -> None:
    owner = Owner()
    time.sleep(8)  # in the middle of the imports
    assert alive(owner.server)
    owner.end(number)
    assert gone(owner)


def test_the_owner_is_killed_while_the_server_runs() -> None:
    owner = Owner()
    assert owner.line() == "up"
    assert not is_free(owner.port)
    owner.end(signal.SIGKILL)
    assert gone(owner)


def test_an_exception_in_the_body_and_a_named_port() -> None:
    groups = []

    def fail_inside() -> None:
        with Runtime(demo_target(), port=40001) as runtime:
            assert runtime.url == "http://127.0.0.1:40001"
            groups.append(runtime.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert not alive(groups[0])
    assert is_free(40001)


def test_a_draft_that_hangs_while_loading(tmp_path: Path) -> None:
    """Its weights are a pipe into which nobody writes: the start ends with a sentence after its time."""
    draft = tmp_path / "draft"
    draft.mkdir()
    for file in demo_target().iterdir():
        if file.name != "model.safetensors":
            (draft / file.name).symlink_to(file)
    os.mkfifo(draft / "model.safetensors")
    port = free_port()
    with pytest.raises(EngineError, match="launch_timeout"):
        Runtime(demo_target(), str(draft), port=port, launch_timeout=90)
    assert is_free(port)
