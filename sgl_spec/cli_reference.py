"""`docs/cli.md` from the commands themselves: `python -m sgl_spec.cli_reference > docs/cli.md`."""

import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer
from typer.main import get_command

from sgl_spec.cli import COMMANDS, load

PROGRAMS = ("chat", "code", "summarization")
HEAD = """# Command line

Written by `python -m sgl_spec.cli_reference` from the commands' own definitions; a test compares.
Exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.
`sgl-spec serve` also takes every knob of [tuning.md](tuning.md) and every option of SGLang's server.
"""


def page() -> str:
    """Return the whole reference as Markdown."""
    parts = [HEAD]
    for name, entry in COMMANDS.items():
        parts += _sections(f"sgl-spec {name}", get_command(load(name)), entry.summary)
    for name in PROGRAMS:
        app: typer.Typer = import_module(f"programs.{name}").app
        parts += _sections(f"python -m programs.{name}", get_command(app), "")
    return "\n".join(parts)


def _sections(usage: str, command: Any, summary: str, level: str = "##") -> Iterator[str]:
    """Yield the sections of a command, of its subcommands where it has some."""
    inside = getattr(command, "commands", None)
    text = inspect.cleandoc(command.help or "")
    if inside:
        yield f"{level} {usage}\n\n{summary or text.splitlines()[0]}\n"
        for name, one in inside.items():
            yield from _sections(f"{usage} {name}", one, "", level + "#")
        return
    said, _, examples = text.partition("\b\n")
    yield f"{level} {usage}\n\n{said.strip() or summary}\n"
    if examples:
        lines = [line.strip() for line in examples.splitlines()[1:] if line.strip()]
        yield "\n".join(["```", *lines, "```", ""])
    context = command.make_context(usage, [], resilient_parsing=True)
    rows = [_row(parameter, context) for parameter in command.params if parameter.name != "help"]
    if rows:
        yield "\n".join(["| option | value | default | |", "| --- | --- | --- | --- |", *rows, ""])


def _row(parameter: Any, context: Any) -> str:
    """Return a table row: names, kind of value, default, help."""
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar or parameter.name]
    default = "required" if parameter.required else _default(parameter.default)
    variable = f" Environment: `{parameter.envvar}`." if parameter.envvar else ""
    cells = [
        ", ".join(f"`{name}`" for name in names),
        _kind(parameter, context),
        default,
        (parameter.help or "") + variable,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _kind(parameter: Any, context: Any) -> str:
    """Return what a value is: nothing for a switch, the choices, or a type and its range."""
    if getattr(parameter, "is_flag", False):
        return ""
    kind = parameter.display_type(context).strip("<>").removesuffix(" range").replace("|", ", ")
    bounds = [f"{sign} {bound}" for sign, bound in (("≥", parameter.min), ("≤", parameter.max)) if bound is not None]
    return ", ".join([kind, *bounds])


def _default(value: Any) -> str:
    """Return the default as it would be written; nothing where there is none."""
    if value in (None, "", (), [], False):
        return ""
    return f"`{getattr(value, 'value', value)}`"


if __name__ == "__main__":
    sys.stdout.write(page())
