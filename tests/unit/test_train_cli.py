"""`sgl-spec distill` from the command to the JSON document, on a toy target."""

import json

import pytest
from typer.testing import CliRunner

from sgl_spec.errors import ConfigError
from sgl_spec.train import texts
from sgl_spec.train.cli import app
from tests.unit.train_toys import toy_target


def _run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)


def test_distill_then_evaluate(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "cache_root", lambda: tmp_path / "cache")
    for name, offset in (("training_prompts", 0), ("held_out_prompts", 20)):
        prompts = {t: [f"w{offset + i + 2} w{i + 2}" for i in range(6)] for t in texts.TASKS}
        monkeypatch.setattr(texts, name, prompts.__getitem__)
    monkeypatch.setattr(texts, "SLOTS", 4)
    target, out = toy_target(tmp_path / "target"), tmp_path / "draft"
    small = ("--layers", 1, "--hot-tokens", 64, "--steps", 4, "--tokens-per-step", 64, "--answer-tokens", 200)
    made = _run(target, "--out", out, *small, "--json")
    assert made.exit_code == 0, made.output
    document = json.loads(made.stdout.splitlines()[-1])
    assert document["draft"] == str(out)
    measured = _run("evaluate", out, "--target", target, "--json")
    assert measured.exit_code == 0, measured.output
    again = json.loads(measured.stdout.splitlines()[-1])
    assert list(again) == ["acceptance", "hot_head_coverage", "draft_step_ms", "file_mb", "provenance", "predicted"]
    assert set(again["acceptance"]) == set(texts.TASKS)
    assert again["acceptance"] == document["acceptance"]


@pytest.mark.parametrize("command", [("missing", "--out", "x"), ("evaluate", "missing")])
def test_a_missing_folder_is_one_sentence(command):
    failed = _run(*command)
    assert isinstance(failed.exception, ConfigError)
    assert "missing" in str(failed.exception)
