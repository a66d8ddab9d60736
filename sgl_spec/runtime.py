"""`Runtime`: a server with speculative decoding as the backend of SGLang programs, started or attached to."""

import json
from types import TracebackType
from typing import Any, Self

from sgl_spec.endpoint import KEY, SpecEndpoint
from sgl_spec.errors import EngineError
from sgl_spec.serve import Launch, plan_launch, speculates
from sgl_spec.server_process import LAUNCH_TIMEOUT_S, ServerProcess


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
        launch = plan_launch(
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
        self.server = ServerProcess(launch)
        try:
            self.server.wait(launch_timeout)
            super().__init__(launch.url, api_key=server_args.get("api_key"))
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
    def launch(self) -> Launch:
        """What the server was started with."""
        return self.server.launch

    @property
    def pid(self) -> int | None:
        """The server's process id, None after `shutdown`."""
        return self.server.pid

    @property
    def changed_settings(self) -> tuple[str, ...]:
        """Every server setting that sgl-spec chose on its own, with the reason."""
        return self.launch.changed

    def server_state(self) -> dict[str, Any] | None:
        """Return what the scheduler reports of sgl-spec, None where it has no source of guesses.

        Raises EngineError if our algorithm was asked for and is not live: SGLang only logs a plugin that
        fails.
        """
        return live_state(self, self.server)

    def stats(self) -> dict[str, Any]:
        """Return counts since the start: in total, per program, by position and by source of the guesses."""
        return stats_of(self)

    def log_tail(self) -> str:
        """Return the last lines of the server's log."""
        return self.server.log_tail()

    def shutdown(self) -> None:
        """Stop the server with all its processes; its port is free afterwards. May be called again."""
        self.server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _paths(given: Any) -> Any:
    return [str(path) for path in given] if isinstance(given, list | tuple) else str(given)


def live_state(endpoint: SpecEndpoint, server: ServerProcess) -> dict[str, Any] | None:
    """As `Runtime.server_state`, of a server of ours and its address."""
    state = spec_state(endpoint)
    if state is None and speculates(server.launch.config):
        raise EngineError("The server runs without sgl-spec's algorithm; its log says:\n" + server.log_tail())
    return state


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
