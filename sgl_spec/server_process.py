"""A server as a child process: started, waited for, and stopped with all that it started."""

import atexit
import subprocess
import sys
import tempfile
import time
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from sgl_spec.errors import EngineError
from sgl_spec.orphans import stop_group
from sgl_spec.serve import Launch

LAUNCH_TIMEOUT_S = 600.0
LOG_TAIL = 12  # lines of the server's log in an error


class ServerProcess:
    """The server of a `Launch`; loading goes on while this process does other things until `wait`.

    It ends with `stop`, at the end of a ``with`` body, and however this process ends.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._log = tempfile.NamedTemporaryFile(prefix="sgl-spec-", suffix=".log", delete=False)  # noqa: SIM115
        atexit.register(self.stop)
        self.process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-m", "sgl_spec.sglang_plugin.server", *launch.arguments],
            stdin=subprocess.PIPE,  # held open: the server ends when it closes (sgl_spec.orphans)
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=launch.environment,
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        """The server's process id, None once it was stopped."""
        return None if self.process is None else self.process.pid

    def wait(self, timeout: float = LAUNCH_TIMEOUT_S) -> None:
        """Return when the server answers; raises EngineError if it ends or does not answer within `timeout` seconds."""
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while not _answers(self.launch):
            if self.process.poll() is not None:
                raise EngineError(
                    f"The server ended with status {self.process.returncode} while starting:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise EngineError(
                    f"The server did not answer within launch_timeout={timeout:.0f} s; raise it if the model is "
                    f"still loading:\n{self.log_tail()}"
                )
            time.sleep(0.1)

    def log_tail(self, lines: int = LOG_TAIL) -> str:
        """Return the last lines of the server's log."""
        text = Path(self._log.name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        """End the server with all its processes; its port is free afterwards. May be called again."""
        process, self.process = self.process, None
        if process is None:
            return
        stop_group(process.pid)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._log.close()
        Path(self._log.name).unlink()
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _answers(launch: Launch) -> bool:
    """Whether the server has answered its own warm-up. ``/health`` says the same and takes a second for it.

    A server with another key than ours refuses ``/ping``; ``/health`` needs none.
    """
    key = launch.server_args.get("api_key")
    try:
        return _is_ok(Request(f"{launch.url}/ping", headers={"Authorization": f"Bearer {key}"} if key else {}))  # noqa: S310
    except HTTPError as error:
        return error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) and _is_well(launch)
    except OSError:
        return False


def _is_well(launch: Launch) -> bool:
    try:
        return _is_ok(Request(f"{launch.url}/health"))  # noqa: S310
    except OSError:
        return False


def _is_ok(request: Request) -> bool:
    with urlopen(request, timeout=5.0) as answer:  # noqa: S310 - our own http address
        return bool(answer.status == HTTPStatus.OK)
