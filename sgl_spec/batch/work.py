"""What a batch does with a row: a program of ours, a function of the user's, an OpenAI request as it is."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sgl_spec.batch.rows import Row
from sgl_spec.batch.usage import Usage
from sgl_spec.config import RequestOptions, unknown_name
from sgl_spec.errors import ConfigError
from sgl_spec.names import nearest

BUILT_IN = {
    "chat": "programs.batch:chat_row",
    "code": "programs.batch:code_row",
    "summarization": "programs.batch:summarization_row",
}
OPENAI = "openai"
NOT_ARGUMENTS = ("id", "sgl_spec")


class RowError(ConfigError):
    """A row cannot be run as it is."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row gave: `output` is JSON, `extra` are more fields of its record."""

    output: Any
    usage: Usage
    extra: dict[str, Any]


class Work(Protocol):
    """Runs one row on a server; raises what went wrong."""

    def __call__(self, row: Row, server: Any) -> Outcome:
        """Return the row's outcome."""
        ...


def find_work(name: str) -> Work:
    """Return the work that `--program name` asks for; raises ConfigError."""
    if name == OPENAI:
        from sgl_spec.batch.openai_rows import openai_row

        return openai_row
    target = BUILT_IN.get(name, name)
    if ":" not in target:
        known = [*BUILT_IN, OPENAI]
        raise ConfigError(f"program={name!r} is unknown{nearest(name, known)}; for your own say my_module:function.")
    found = _load(name, *target.split(":", 1))
    return ProgramWork(found, name if name in BUILT_IN else target)


def _load(name: str, module: str, attribute: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does, for the user's own module
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.partition(".")[0]):
            raise
        raise ConfigError(f"program={name!r}: there is no module {module!r} here or on the Python path.") from None
    if not hasattr(found, attribute):
        raise ConfigError(f"program={name!r}: module {module!r} has no {attribute!r}{nearest(attribute, vars(found))}.")
    return getattr(found, attribute)


class ProgramWork:
    """An `@sgl.function`, whose arguments are the row's keys, or any function of (row, server)."""

    def __init__(self, program: Any, key: str) -> None:
        from sglang.lang.ir import SglFunction

        if not isinstance(program, SglFunction) and not callable(program):
            raise ConfigError(f"program={key!r} is no @sgl.function and no function of (row, server).")
        self.key = key
        self._run: Callable[[dict[str, Any], Any], Any] = (
            _program_runner(program) if isinstance(program, SglFunction) else program
        )

    def __call__(self, row: Row, server: Any) -> Outcome:
        """Run the row with its own options (key "sgl_spec"), counting every request that it makes."""
        options = row.values.get("sgl_spec", {})
        RequestOptions.parse(options)
        counting = server.fresh()
        counting.bound = {"program": self.key, **server.bound, **options}
        output = self._run(row.values, counting)
        return Outcome(output, counting.usage, {})


def _program_runner(program: Any) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    from programs.state import check

    needed = program.arg_names[: len(program.arg_names) - len(program.arg_defaults)]

    def run(values: dict[str, Any], server: Any) -> dict[str, Any]:
        arguments = {key: value for key, value in values.items() if key not in NOT_ARGUMENTS}
        for name in arguments:
            if name not in program.arg_names:
                raise RowError(unknown_name("the row", name, program.arg_names))
        for name in needed:
            if name not in arguments:
                raise RowError(f"the row has no {name!r}, which the program needs.")
        # Without a thread of its own an error is raised where it happens, and nothing later can hang on it.
        state = check(program.run(**arguments, backend=server, use_thread=False))
        return dict(state.stream_executor.variables)

    return run
