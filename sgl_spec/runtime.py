"""`Runtime`: a server with speculative decoding as the backend of SGLang programs, started or attached to."""

import atexit
import json
import subprocess
import sys
import tempfile
import time
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from sgl_spec.endpoint import KEY, SpecEndpoint
from sgl_spec.errors import EngineError
from sgl_spec.orphans import stop_group
from sgl_spec.serve import Launch, plan_launch, speculates

LAUNCH_TIMEOUT_S = 600.0
LOG_TAIL = 12  # lines of the server's log in an error


class Runtime(SpecEndpoint):
    """A server with a draft model, and the backend to run programs on.

    ``sgl.set_default_backend(sgl_spec.Runtime(model_path=..., draft_model_path=...))``; every SGLang server
    argument may be given too, by its name. Use as a context manager or call `shutdown`.

    Raises ConfigError (nothing was started) for a wrong setting, EngineError where the server does not start.
    """

    def __init__(
        self,
        model_path: str,
        draft_model_path: str | list[str] | None = None,
        num_speculative_tokens: int = 5,
        tp_size: int = 1,
        controller: str = "throughput",
        *,
        launch_timeout: float = LAUNCH_TIMEOUT_S,
        **server_args: Any,
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.launch: Launch | None = plan_launch(
            {
                "model_path": str(model_path),
                "draft_model_path": draft_model_path if draft_model_path is None else _paths(draft_model_path),
                "num_speculative_tokens": num_speculative_tokens,
                "tp_size": tp_size,
                "controller": controller,
                "log_level": "warning",
                **server_args,
            }
        )
        self._log = tempfile.NamedTemporaryFile(prefix="sgl-spec-", suffix=".log", delete=False)  # noqa: SIM115
        atexit.register(self.shutdown)
        try:
            self._start(launch_timeout)
            super().__init__(self.launch.url, api_key=server_args.get("api_key"))
            self.server_state()
        except BaseException:
            self.shutdown()
            raise

    @classmethod
    def attach(cls, url: str, api_key: str | None = None) -> SpecEndpoint:
        """Return the backend of a server that runs already, with or without sgl-spec."""
        try:
            return SpecEndpoint(url.rstrip("/"), api_key=api_key)
        except OSError as error:
            raise EngineError(
                f"No SGLang server answers at {url} ({error}): start one or correct the address"
            ) from None

    @property
    def url(self) -> str:
        """The server's address."""
        return self.base_url

    @property
    def pid(self) -> int | None:
        """The server's process id, None after `shutdown`."""
        return None if self.process is None else self.process.pid

    @property
    def changed_settings(self) -> tuple[str, ...]:
        """Every server setting that sgl-spec chose on its own, with the reason."""
        return () if self.launch is None else self.launch.changed

    def _start(self, timeout: float) -> None:
        assert self.launch is not None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sgl_spec.sglang_plugin.server", *self.launch.arguments],
            stdin=subprocess.PIPE,  # held open: the server ends when it closes (sgl_spec.orphans)
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self.launch.environment,
            start_new_session=True,
        )
        deadline = time.monotonic() + timeout
        while not _answers(f"{self.launch.url}/health"):
            if self.process.poll() is not None:
                raise EngineError(
                    f"The server ended with status {self.process.returncode} while starting:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise EngineError(
                    f"The server did not answer within launch_timeout={timeout:.0f} s; raise it if the model is "
                    f"still loading:\n{self.log_tail()}"
                )
            time.sleep(0.2)

    def server_state(self) -> dict[str, Any] | None:
        """Return what the scheduler reports of sgl-spec, None where it has no source of guesses.

        Raises EngineError if our algorithm was asked for and is not live: SGLang only logs a plugin that
        fails.
        """
        state = spec_state(self)
        if state is None and self.launch is not None and speculates(self.launch.config):
            raise EngineError("The server runs without sgl-spec's algorithm; its log says:\n" + self.log_tail())
        return state

    def stats(self) -> dict[str, Any]:
        """Return counts since the start: in total, per program, by position and by source of the guesses."""
        return stats_of(self)

    def log_tail(self, lines: int = LOG_TAIL) -> str:
        """Return the last lines of the server's log."""
        text = Path(self._log.name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def shutdown(self) -> None:
        """Stop the server with all its processes; its port is free afterwards. May be called again."""
        process, self.process = self.process, None
        if process is None:
            return
        stop_group(process.pid)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._log.close()
        Path(self._log.name).unlink()
        atexit.unregister(self.shutdown)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _paths(given: Any) -> Any:
    return [str(path) for path in given] if isinstance(given, list | tuple) else str(given)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5.0) as answer:  # noqa: S310 - our own http address
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


def spec_state(endpoint: SpecEndpoint) -> dict[str, Any] | None:
    """Return the first scheduler's report on sgl-spec, None on a server without it."""
    return spec_state_of(endpoint.get_server_info())


def spec_state_of(server_info: dict[str, Any]) -> dict[str, Any] | None:
    """Return the report in what a server says at /server_info, None without one."""
    states = server_info.get("internal_states") or [{}]
    state = states[0].get(KEY)
    return json.loads(state) if isinstance(state, str) else state


def stats_of(endpoint: SpecEndpoint) -> dict[str, Any]:
    """Return a server's speculation statistics; raises EngineError where it has none."""
    state = spec_state(endpoint)
    if state is None:
        raise EngineError(f"The server at {endpoint.base_url} runs without sgl-spec: start it with a draft model")
    stats: dict[str, Any] = state["stats"]
    return stats
