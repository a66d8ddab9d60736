"""`sgl-spec`: finds the command, runs it, and turns every expected failure into one sentence.

A command's module is imported only when that command runs. Exit status: 0 done, 1 failed (the engine
died, a check did not hold), 2 bad input, 130 interrupted.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import typer
from pydantic import ValidationError
from typer.main import get_command

from sgl_spec.console import people, sentence, table
from sgl_spec.errors import ConfigError, SpecError
from sgl_spec.names import nearest


class Command(NamedTuple):
    """Where a command lives ("module:object", a function or a typer.Typer), what it does, an example."""

    target: str
    summary: str
    example: str


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "sgl_spec.demo_run:demo",
        "The real engine on the demo pair, with and without guessing.",
        "demo",
    ),
    "models": Command(
        "sgl_spec.models_cli:models",
        "The models that need no hub: fetch, list.",
        "models fetch demo",
    ),
    "serve": Command(
        "sgl_spec.serve_cli:serve",
        "Start a server: every option of SGLang and of sgl-spec.",
        "serve --model-path TARGET --draft-model-path DRAFT",
    ),
    "plan": Command(
        "sgl_spec.advise.plan_cli:plan",
        "How much memory a target and its draft need.",
        "plan --preset article",
    ),
    "advise": Command(
        "sgl_spec.advise.advise_cli:advise",
        "Which draft for a target, and whether it can pay.",
        "advise Qwen2.5-72B --tp-size 4",
    ),
    "distill": Command(
        "sgl_spec.train.cli:app",
        "Make a draft for a target, and prove what it brings.",
        "distill TARGET --out DRAFT",
    ),
    "simulate": Command(
        "sgl_spec.simulate_cli:simulate",
        "Controllers on a recorded trace, without a model.",
        "simulate --batch 8",
    ),
    "batch": Command(
        "sgl_spec.batch.cli:batch",
        "A JSONL file through a program, with resume and one record per row.",
        "batch chat.jsonl -o answers.jsonl --url http://127.0.0.1:30000",
    ),
    "bench": Command(
        "sgl_spec.bench.cli:app",
        "Measure: speed against plain decoding, by source, policy and case.",
        "bench speedup --json",
    ),
    "certify": Command(
        "sgl_spec.certify:certify",
        "Is a draft lossless for a target: greedy parity, laws, options.",
        "certify ./target ./draft",
    ),
    "doctor": Command(
        "sgl_spec.doctor:doctor",
        "Why is it slow: versions, hooks, threads, acceptance, one reason.",
        "doctor http://127.0.0.1:30000",
    ),
    "export": Command(
        "sgl_spec.export:export",
        "The same speculation on another engine.",
        "export vllm --model-path TARGET --draft-model-path DRAFT",
    ),
}

# Base class of typer's own usage errors; typer keeps a private copy of click, so it is reached from here.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `sgl-spec ARGUMENTS` (default: the process's) and return the exit status."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(argv)
    except (SpecError, ValidationError, KeyboardInterrupt, typer.Abort, OSError, _UsageError) as error:
        message, status = _explain(error)
        sys.stderr.write(f"sgl-spec: {message}\n")
        return status


def _explain(error: BaseException) -> tuple[str, int]:
    """(sentence, exit status) of an expected failure."""
    if isinstance(error, ValidationError):
        return sentence(error), 2
    if isinstance(error, _UsageError):
        return error.format_message(), 2  # type: ignore[attr-defined]
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", 130
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""), 1
    return str(error), 2 if isinstance(error, ConfigError) else 1


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        _print_commands()
        return 0
    if argv[0] == "--version":
        people().print(f"sgl-spec {_version()}")
        return 0
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS)
        raise ConfigError(f"there is no command {name!r}{hint}; `sgl-spec --help` lists them.")
    app = load(name)
    if not rest and app.registered_groups + app.registered_commands[1:]:
        rest = ["--help"]
    result = get_command(app).main(rest, prog_name=f"sgl-spec {name}", standalone_mode=False)
    return result if isinstance(result, int) else 0


def load(name: str) -> typer.Typer:
    """Import a command's module and return the command."""
    module, attribute = COMMANDS[name].target.split(":")
    return _as_app(name, getattr(import_module(module), attribute))


def _as_app(name: str, target: typer.Typer | Callable[..., Any]) -> typer.Typer:
    if isinstance(target, typer.Typer):
        return target
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    context = {"help_option_names": ["-h", "--help"]} | getattr(target, "context_settings", {})
    app.command(name, context_settings=context)(target)
    return app


def _print_commands() -> None:
    out = people()
    out.print("usage: sgl-spec COMMAND [ARGUMENTS]    (each command: --help, --json)\n")
    rows = [(name, entry.summary) for name, entry in COMMANDS.items()]
    out.print(table("", ("command", "what it does"), rows))
    out.print("\nexamples:\n" + "\n".join(f"  sgl-spec {entry.example}" for entry in COMMANDS.values()))


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sgl-spec")
    except PackageNotFoundError:
        raise ConfigError("sgl-spec has no entry points here: run ./launch.sh once.") from None


if __name__ == "__main__":
    raise SystemExit(main())
