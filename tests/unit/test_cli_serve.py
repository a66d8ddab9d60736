"""`sgl-spec serve`: options from words and YAML, refusals, the command that would run."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sgl_spec.cli import main
from sgl_spec.errors import ConfigError
from sgl_spec.serve_cli import parse_options, read_yaml


def target(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps({"vocab_size": 100}))
    save_file({"model.norm.weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    return folder


def test_words_become_typed_options() -> None:
    words = "--model-path 7 --tp=2 --num-speculative-tokens 8 --draft-confidence 0.3 --trust-remote-code"
    words += " --lora-paths a b c --controller fixed --dtype float32 --mem-fraction-static 0.5"
    assert parse_options(words.split()) == {
        "model_path": "7",
        "tp_size": 2,
        "num_speculative_tokens": 8,
        "draft_confidence": 0.3,
        "trust_remote_code": True,
        "lora_paths": ["a", "b", "c"],
        "controller": "fixed",
        "dtype": "float32",
        "mem_fraction_static": "0.5",
    }


def test_several_drafts_form_a_pyramid() -> None:
    assert parse_options(["--draft-model-path", "A", "B"])["draft_model_path"] == ["A", "B"]


def test_yaml(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("model-path: T\nnum_speculative_tokens: 4\ntp: 2\n")
    assert read_yaml(file) == {"model_path": "T", "num_speculative_tokens": 4, "tp_size": 2}
    for text in ("- a\n- b\n", "a: [1\n"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="config="):
            read_yaml(file)


def test_check_prints_the_command_and_words_beat_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("num_speculative_tokens: 4\ncontext_length: 128\n")
    words = ["--model-path", str(target(tmp_path)), "--context-length", "256", "--device", "cpu"]
    assert main(["serve", "--config", str(file), "--check", *words]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"python -m sglang.launch_server --model-path {tmp_path}")
    assert "--context-length 256" in captured.out
    assert "--host 127.0.0.1" in captured.out
    assert "set here: dtype=float32 (no accelerator)" in captured.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "serve needs --model-path"),
        (["TARGET"], "write --model-path before it"),
        (["--model-path", "/nowhere/at/all"], "does not exist"),
        (["--model-path", "x/y", "--num-speculative-token", "3"], "num_speculative_tokens"),
        (["--model-path", "x/y", "--num-speculative-tokens", "99"], "num_speculative_tokens=99"),
        (["--model-path", "x/y", "--num-speculative-tokens", "many"], "num_speculative_tokens='many'"),
        (["--model-path", "x/y", "--port", "http"], "port='http' is no port number"),
        (["--model-path", "x/y", "--port", "70000"], "port=70000"),
        (["--config", "/nowhere.yaml"], "config=/nowhere.yaml cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words, "--check"]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.count("\n") == 1
