"""Whatever distillation cannot work with is one sentence, and what was made until then is kept."""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sgl_spec.draft.model import DraftCard, write_shipped
from sgl_spec.errors import ConfigError
from sgl_spec.train import distil, gain, proof, rows, shards, texts
from sgl_spec.train.config import TrainConfig
from sgl_spec.train.corpus import Corpus
from sgl_spec.train.evaluate import TaskScore
from sgl_spec.train.loop import train
from sgl_spec.train.proof import Proof, prove
from sgl_spec.train.shards import Sequence, write_shard
from sgl_spec.train.student import student_of
from tests.unit.train_toys import CONFIG, VOCABULARY

SMALL = TrainConfig(init_layers=(0,), initial_norm=1.0, hot_tokens=40, steps=2, tokens_per_step=16, warmup_steps=1)


def changed(target, folder, **values):
    """The toy target with other entries in its config."""
    shutil.copytree(target, folder)
    (folder / "config.json").write_text(json.dumps(CONFIG | values))
    return folder


def sequence(key, tokens, start=1):
    count = len(tokens) - start
    ids = np.arange(4, dtype=np.int32)[None].repeat(count, 0)
    return Sequence(
        key, "chat", 0.0, start, np.array(tokens, np.int32), ids, np.full((count, 4), -math.log(4), np.float32)
    )


def test_nothing_to_train_on():
    with pytest.raises(ConfigError, match="the training text is empty"):
        Corpus([sequence("a", [1], start=1)])


def test_the_last_group_of_an_epoch_may_be_small():
    corpus = Corpus([sequence(str(i), [1, 2, 3, 4]) for i in range(5)])
    batches = corpus.batches(tokens_per_step=6, seed=0)
    sizes = [len(next(batches).rows) for _ in range(6)]
    assert sizes == [6, 6, 3, 6, 6, 3]  # five answers of three tokens, twice
    exact = Corpus([sequence(str(i), [1, 2, 3, 4]) for i in range(4)]).batches(6, 0)
    assert [len(next(exact).rows) for _ in range(3)] == [6, 6, 6]


def test_layers_that_the_target_has_not(target):
    for layers in ((2,), (-3,)):
        with pytest.raises(ConfigError, match="names a layer beyond the target's 2; use 0 to 1"):
            student_of(target, layers, [1, 2], 1.0)
    last = student_of(target, (-1,), [1, 2], 1.0).trained_state()
    theirs = load_file(target / "model.safetensors")
    assert torch.equal(last["model.layers.0.mlp.down_proj.weight"], theirs["model.layers.1.mlp.down_proj.weight"])


@pytest.mark.parametrize(
    "values",
    [
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
        {"rope_scaling": {"rope_type": "yarn"}, "rope_parameters": None},
        {"attention_bias": True},
        {"mlp_bias": True},
    ],
)
def test_targets_with_scaled_positions_or_biases(target, tmp_path, values):
    with pytest.raises(ConfigError, match="scales its rotary positions or has biases"):
        student_of(changed(target, tmp_path / "other", **values), (0,), [1], 1.0)


def test_a_target_without_weights(target, tmp_path):
    folder = changed(target, tmp_path / "other")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"holds no \.safetensors file"):
        student_of(folder, (0,), [1], 1.0)


def test_a_checkpoint_of_another_hot_head(target, tmp_path):
    corpus = Corpus([sequence(str(i), [1, 2, 3, 4]) for i in range(8)])
    train(student_of(target, (0,), [1, 2, 3], 1.0), corpus, SMALL, tmp_path, stop_after=1)
    with pytest.raises(ConfigError, match="has another hot-token head; give another folder"):
        train(student_of(target, (0,), [1, 2, 4], 1.0), corpus, SMALL, tmp_path)


@pytest.mark.parametrize("knob", ["final_rate", "soft_share"])
def test_shares_are_at_most_one(knob):
    assert getattr(replace(SMALL, **{knob: 1.0}), knob) == 1.0
    for value in (-0.1, 1.1):
        with pytest.raises(ConfigError, match=f"{knob}={value} is no share"):
            replace(SMALL, **{knob: value})


def test_heads_of_another_width_are_not_generated_with(target, tmp_path):
    folder = changed(target, tmp_path / "other", num_attention_heads=4)
    with pytest.raises(ConfigError, match="head_dim 32; generation on a CPU knows 64"):
        rows.RowModel(folder, 1, 64)


def test_a_full_disk_under_the_texts(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards.np, "savez", full)
    with pytest.raises(ConfigError, match=r"\(No space left on device\); free some disk space"):
        write_shard(tmp_path, [sequence("a", [1, 2, 3])])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_under_the_draft(target, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(distil, "assemble", full)
    student = student_of(target, (0,), [1, 2, 3], 1.0)
    with pytest.raises(ConfigError, match=r"out=.*draft cannot be written \(No space left on device\)"):
        distil.write_draft(student, target, tmp_path / "draft", before={}, held_out=[], facts={})
    assert list(tmp_path.iterdir()) == []  # no half a draft


def test_own_text_is_added_to_the_answers(target, tmp_path, monkeypatch):
    said, given = [], {}
    monkeypatch.setattr(distil, "held_out_answers", lambda target, report: ["held out"])
    monkeypatch.setattr(distil, "training_answers", lambda target, tokens, report: ["answer"])
    monkeypatch.setattr(distil, "labelled_text", lambda target, files: [f"text of {file}" for file in files])
    monkeypatch.setattr(distil, "distill_from", lambda target, out, config, **how: given.update(how))
    distil.distill(target, tmp_path / "d", text_files=["own"], reporter=distil.Reporter(say=said.append))
    assert given["answers"] == ["answer", "text of own"]
    assert said == ["labelling 1 text files with the target"]


def test_plain_text_is_one_text_and_single_tokens_are_left_out(target, tmp_path):
    (tmp_path / "own.txt").write_text("w3 w4 w5\nw6 w7")
    labelled = texts.labelled_text(target, [tmp_path / "own.txt"], chunk=4, top_k=2)
    assert [one.tokens.tolist() for one in labelled] == [[3, 4, 5, 6]]  # the fifth alone has nothing to predict


def test_damaged_lines_are_named(target, tmp_path):
    (tmp_path / "own.jsonl").write_text('{"text": "w3"}\n\n{"text": \n')
    with pytest.raises(ConfigError, match='no "text" or "messages" in line 3'):
        texts.labelled_text(target, [tmp_path / "own.jsonl"])


def test_training_text_that_is_there_is_not_generated_again(target, tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "cache_root", lambda: tmp_path)
    write_shard(texts.target_folder(target) / "main", [sequence("a", [1, 2, 3, 4])])
    monkeypatch.setattr(texts, "RowModel", None)
    assert [one.key for one in texts.training_answers(target, 3)] == ["a"]


def test_documents_end_with_a_sentence_and_are_long_enough(target):
    speaker = texts.Speaker(target)
    speaker.tokenizer = SimpleNamespace(decode=lambda ids: "".join(chr(i) for i in ids))
    speaker.stop_ids = frozenset({0})

    def document(text):
        return speaker.document(sequence("a", [5, *[ord(c) for c in text], 0]))

    words = "some words that go on and on, " * 3
    assert document("short.") is None
    assert document(words + "end. And then") == words + "end."
    assert document("Soon. " + words) == ("Soon. " + words).strip()  # the sentence ends too early
    assert document(words) == words.strip()


def test_a_draft_is_proved_against_its_own_target_only(target, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"draft=.*none has no config\.json"):
        prove(tmp_path / "none", target, [])
    with pytest.raises(ConfigError, match=r"target=.*none has no config\.json"):
        prove(target, tmp_path / "none", [])
    other = changed(target, tmp_path / "other", vocab_size=97)
    with pytest.raises(ConfigError, match="has 97 tokens and its target 96"):
        prove(other, target, [])


def test_an_ordinary_model_is_proved_with_its_whole_vocabulary(target, monkeypatch):
    monkeypatch.setattr(proof, "forward_costs", lambda target, most: None)
    seen = []
    monkeypatch.setattr(proof, "score", lambda student, answers: seen.append(student.hot_ids.tolist()) or {})
    monkeypatch.setattr(proof, "step_ms", lambda student, storage: seen.append(storage) or 1.0)
    made = prove(target, target, [sequence("a", [1, 2, 3])])
    assert seen == [list(range(VOCABULARY)), "fp32"]
    assert made.gains == {}
    assert (made.provenance["held_out_answers"], made.provenance["held_out_tokens"]) == (1, 2)


def test_a_drafts_own_megabytes_leave_the_targets_tensors_out(target, tmp_path):
    student = student_of(target, (0,), [3, 4, 5], 1.0)
    write_shipped(tmp_path / "d", student.config, student.trained_state(), [3, 4, 5], DraftCard(target="toy"))
    own = sum(value.numel() for value in student.trained_state().values())
    ids = (tmp_path / "d" / "hot_token_ids.safetensors").stat().st_size
    assert proof.own_megabytes(tmp_path / "d") == pytest.approx((2 * own + ids) / 1e6)
    weights = {"model.embed_tokens.weight": torch.zeros(96, 128), "model.norm.weight": torch.ones(128)}
    (tmp_path / "whole").mkdir()
    save_file(weights, tmp_path / "whole" / "model.safetensors")
    assert proof.own_megabytes(tmp_path / "whole") == 2 * 128 / 1e6


def test_a_row_without_a_prediction_has_a_dash():
    score = TaskScore(acceptance=0.5, by_position=(0.5, 0.25), coverage=0.9, tokens=10)
    made = Proof({"chat": score}, {}, 1.0, 1.0, {})
    assert proof.rows(None, made) == [("chat", "-", "0.500", "0.50 0.25", "0.900", "-", "10")]
    assert proof.rows({"chat": replace(score, acceptance=0.25)}, made)[0][1] == "0.250"


def test_what_is_not_known_of_the_code_is_said(monkeypatch):
    def none(*_, **__):
        raise OSError("no git")

    monkeypatch.setattr(proof.subprocess, "run", none)
    monkeypatch.setattr(proof, "version", lambda name: (_ for _ in ()).throw(proof.PackageNotFoundError(name)))
    facts = proof.provenance()
    assert (facts["commit"], facts["torch"]) == ("not a checkout", "not installed as a package")


def test_a_target_too_large_for_the_memory_is_not_measured(target, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    assert gain.forward_costs(target, 4) is None
