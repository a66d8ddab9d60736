"""Wrong starts are refused in one sentence before anything is loaded."""

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from sgl_spec.errors import ConfigError
from sgl_spec.preflight import check_folder, check_port
from sgl_spec.serve import plan_launch


def weights(tensors: dict, data: bytes = b"") -> bytes:
    """The bytes of a safetensors file."""
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + data


def model(folder: Path, **config) -> Path:
    """A folder that looks like a model until somebody loads it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 10, **config}))
    (folder / "model.safetensors").write_bytes(weights({}))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(model(tmp_path / "target"))


def refuse(match: str, **values) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        plan_launch(values)
    assert "\n" not in str(caught.value)


def test_missing_and_empty_draft(tmp_path, target):
    refuse("draft_model_path=.*does not exist", model_path=target, draft_model_path=str(tmp_path / "nothing"))
    refuse("draft_model_path", model_path=target, draft_model_path="")
    (tmp_path / "empty").mkdir()
    refuse("no config.json", model_path=target, draft_model_path=str(tmp_path / "empty"))


def test_a_lora_adapter_is_no_draft(tmp_path, target):
    adapter = model(tmp_path / "adapter")
    (adapter / "adapter_config.json").write_text("{}")
    refuse("LoRA adapter", model_path=target, draft_model_path=str(adapter))


def test_missing_weights_and_shards(tmp_path, target):
    bare = model(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    refuse("no weights", model_path=target, draft_model_path=str(bare))
    sharded = model(tmp_path / "sharded")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    refuse("lacks 1 of 2 shards, first model-2", model_path=target, draft_model_path=str(sharded))


MATRIX = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
WHOLE = weights({"w": MATRIX}, bytes(16))


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (b"", "no whole safetensors file"),
        (WHOLE[:30], "no whole safetensors file"),
        (WHOLE[:-1], f"holds {len(WHOLE) - 1} bytes where its header says {len(WHOLE)}"),
        (WHOLE + b"x", f"holds {len(WHOLE) + 1} bytes where its header says {len(WHOLE)}"),
        (b"version https://git-lfs.github.com/spec/v1", "no whole safetensors file"),
        (weights({"w": 3}), "no whole safetensors file"),
        (weights({"a.weight": MATRIX | {"dtype": "I32"}}, bytes(16)), "stores a.weight as I32"),
        (weights({"a.weight": MATRIX | {"dtype": "F8_E4M3"}}, bytes(16)), "stores a.weight as F8_E4M3"),
    ],
)
def test_torn_and_wrong_weights(tmp_path, target, held, sentence):
    draft = model(tmp_path / "draft")
    (draft / "model.safetensors").write_bytes(held)
    refuse(sentence, model_path=target, draft_model_path=str(draft))


def test_weights_that_may_be_integers(tmp_path):
    quantised = model(tmp_path / "quantised", quantization_config={"quant_method": "gptq"})
    (quantised / "model.safetensors").write_bytes(weights({"a.weight": MATRIX | {"dtype": "I32"}}, bytes(16)))
    check_folder("model_path", str(quantised))
    buffers = model(tmp_path / "buffers")
    counter = {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}
    (buffers / "model.safetensors").write_bytes(weights({"position_ids": counter}, bytes(16)))
    check_folder("model_path", str(buffers))


def test_weights_behind_a_link_to_nothing(tmp_path, target):
    draft = model(tmp_path / "draft")
    (draft / "model.safetensors").unlink()
    (draft / "model.safetensors").symlink_to(tmp_path / "moved")
    refuse("cannot be read", model_path=target, draft_model_path=str(draft))


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": 3}', "{}"])
def test_a_damaged_index(tmp_path, target, index):
    sharded = model(tmp_path / "sharded")
    (sharded / "model.safetensors.index.json").write_text(index)
    refuse("index.json is not readable", model_path=target, draft_model_path=str(sharded))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("held", "sentence"), [(b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"[]", "no JSON object")]
)
def test_damaged_json(tmp_path, target, name, held, sentence):
    damaged = model(tmp_path / "damaged")
    (damaged / name).write_bytes(held)
    refuse(f"{name} .*{sentence}", model_path=target, draft_model_path=str(damaged))
    refuse(f"{name} .*{sentence}", model_path=str(damaged))


def test_contradicting_draft_lengths(target):
    refuse("contradict", model_path=target, speculative_num_steps=3, speculative_num_draft_tokens=3)
    refuse("contradicts", model_path=target, num_speculative_tokens=5, speculative_num_steps=3)
    refuse("chains", model_path=target, speculative_eagle_topk=4)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("pp_size", 2),
        ("dp_size", 2),
        ("enable_dp_attention", True),
        ("enable_hierarchical_cache", True),
        ("enable_return_hidden_states", True),
        ("enable_lora", True),
        ("lora_paths", "adapter"),
        ("disaggregation_mode", "prefill"),
        ("speculative_eagle_topk", 4),
    ],
)
def test_settings_without_a_path(target, setting, value):
    refuse(f"{setting}={value!r}".replace("'prefill'", "prefill"), model_path=target, **{setting: value})


def test_a_key_and_several_tokenizer_processes_exclude_each_other(target):
    refuse("tokenizer_worker_num=2 and api_key", model_path=target, tokenizer_worker_num=2, api_key="k")


def test_an_unknown_name_and_its_neighbour(target):
    refuse("did you mean 'num_speculative_tokens'", model_path=target, num_speculative_token=3)
    refuse("did you mean 'context_length'", model_path=target, contxt_length=3)


def words(folder: Path, vocabulary: list[str]) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": vocabulary[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_draft_with_another_vocabulary(tmp_path, target):
    draft, same = (model(tmp_path / name) for name in ("draft", "same"))
    words(Path(target), ["a", "b", "c"])
    words(same, ["a", "b", "c"])
    words(draft, ["c", "b", "a"])
    given = {"model_path": target, "draft_model_path": str(draft)}
    assert plan_launch(given).changed[0].startswith("draft_vocabulary=t")
    assert plan_launch({**given, "draft_model_path": str(same)}).changed[0].startswith("disable_overlap_schedule")
    refuse("does not fit", **given, draft_vocabulary="same")
    refuse("draft_vocabulary='words' is not valid", **given, draft_vocabulary="words")
    several = {"model_path": target, "draft_model_path": [str(same), str(draft)]}
    refuse("several draft models must share", **several)
    several["draft_model_path"] = [str(same), target]
    assert plan_launch(several).server_args["speculative_draft_model_path"] == str(same)


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot be used"):
            check_port("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="not a port number"):
        check_port("127.0.0.1", 70_000)


def test_a_free_launch_says_what_it_set(target):
    launch = plan_launch({"model_path": target, "device": "cpu"})
    assert launch.server_args["attention_backend"] == "sgl_spec_cpu"
    assert any(change.startswith("dtype=float32") for change in launch.changed)
    assert launch.arguments[:2] == ["--model-path", target]
    assert launch.environment["OMP_WAIT_POLICY"] == "passive"


def test_the_command_line_ends_with_status_2_and_one_line(tmp_path, target):
    command = [sys.executable, "-m", "sgl_spec.cli", "serve", "--model-path", target]
    command += ["--draft-model-path", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "does not exist" in done.stderr


def test_weights_that_are_a_pipe_are_left_to_the_engine(tmp_path):
    draft = model(tmp_path / "draft")
    (draft / "model.safetensors").unlink()
    os.mkfifo(draft / "model.safetensors")
    check_folder("draft_model_path", str(draft))


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("speculative_algorithm", "EAGLE", "is another algorithm than sgl-spec's own"),
        ("speculative_adaptive", True, "leave it out and choose a controller"),
        ("speculative_adaptive_config", {"candidate_steps": [1, 3, 7]}, "leave it out and choose a controller"),
        ("speculative_accept_threshold_single", 0.5, "belongs to another algorithm"),
        ("speculative_accept_threshold_acc", 0.9, "belongs to another algorithm"),
        ("speculative_token_map", "map.pt", "belongs to another algorithm"),
        ("speculative_ngram_capacity", 100, "belongs to another algorithm"),
    ],
)
def test_settings_of_other_algorithms_are_not_passed_over(target, setting, value, sentence):
    refuse(f"{setting}=.*{sentence}", model_path=target, **{setting: value})


def test_what_belongs_to_any_draft_stays(target):
    launch = plan_launch(
        {"model_path": target, "speculative_algorithm": "SGL_SPEC", "speculative_draft_model_revision": "main"}
    )
    assert launch.server_args["speculative_algorithm"] == "SGL_SPEC"
    assert launch.server_args["speculative_draft_model_revision"] == "main"


def test_pages_need_an_accelerator(target):
    refuse("page_size=16 needs an accelerator", model_path=target, page_size=16, device="cpu")
    assert plan_launch({"model_path": target, "page_size": 1, "device": "cpu"}).server_args["page_size"] == 1
