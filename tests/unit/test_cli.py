"""The command table: help, JSON, exit status, sentences."""

import sys
import types
from importlib import import_module

import pytest

from sgl_spec import cli
from sgl_spec.cli import COMMANDS, Command, main
from sgl_spec.console import emit
from sgl_spec.errors import ConfigError, EngineError


@pytest.fixture
def add_command(monkeypatch: pytest.MonkeyPatch):
    def add(name: str, function: object) -> None:
        module = types.ModuleType(f"fake_{name}")
        module.command = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, name, Command(f"{module.__name__}:command", "for a test", name))

    return add


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists_and_shows_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module, attribute = COMMANDS[name].target.split(":")
    assert hasattr(import_module(module), attribute)
    assert main([name, "--help"]) == 0
    assert f"sgl-spec {name}" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert all(name in out and entry.summary in out for name, entry in COMMANDS.items())


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plam"]) == 2
    assert "there is no command 'plam' (did you mean 'plan'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConfigError("k=3 is wrong: use 2."), 2, "k=3 is wrong: use 2."),
        (EngineError("the engine died: read its log."), 1, "the engine died: read its log."),
        (FileNotFoundError(2, "No such file or directory", "x.txt"), 1, "No such file or directory: x.txt"),
    ],
)
def test_failures_are_one_sentence(
    error: Exception, status: int, text: str, add_command, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    add_command("fails", command)
    assert main(["fails"]) == status
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"sgl-spec: {text}\n")


def test_interrupt_is_130(add_command) -> None:
    def command() -> None:
        raise KeyboardInterrupt

    add_command("stops", command)
    assert main(["stops"]) == 130


def test_a_bug_keeps_its_traceback(add_command) -> None:
    def command() -> None:
        raise ZeroDivisionError

    add_command("bug", command)
    with pytest.raises(ZeroDivisionError):
        main(["bug"])


def test_the_returned_number_is_the_status(add_command) -> None:
    def command() -> int:
        return 1

    add_command("says", command)
    assert main(["says"]) == 1


def test_emit_is_one_line_and_refuses_nan(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"text": "zwei\nZeilen", "n": 1.5})
    assert capsys.readouterr().out == '{"text": "zwei\\nZeilen", "n": 1.5}\n'
    with pytest.raises(ValueError, match="JSON"):
        emit({"n": float("nan")})
