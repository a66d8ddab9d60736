"""Distillation of a toy target: it learns, resumes exactly, and its folders load."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sgl_spec.draft.model import read_card, read_hot_ids
from sgl_spec.errors import ConfigError
from sgl_spec.train.config import TrainConfig
from sgl_spec.train.corpus import Corpus
from sgl_spec.train.distil import Reporter, distill, distill_from
from sgl_spec.train.evaluate import score
from sgl_spec.train.generate import Request, generate
from sgl_spec.train.loop import CHECKPOINT, train
from sgl_spec.train.proof import prove
from sgl_spec.train.rows import RowModel
from sgl_spec.train.shards import read_shards, stored_keys, write_shard
from sgl_spec.train.student import student_of
from tests.unit.train_toys import toy_answers

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = TrainConfig(
    init_layers=(0,),
    initial_norm=1.0,
    hot_tokens=80,
    steps=44,
    tokens_per_step=256,
    learning_rate=3e-3,
    warmup_steps=5,
    checkpoint_every=20,
)


@pytest.fixture(scope="module")
def answers(target):
    return toy_answers(target, 200, seed=1, temperature=1.0)


@pytest.fixture(scope="module")
def held_out(target):
    return toy_answers(target, 40, seed=2)


def _student(target, answers, config=CONFIG):
    return student_of(target, config.init_layers, Corpus(answers).hot_tokens(80, 96), config.initial_norm)


def test_rows_equal_transformers(target):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target)
    for answer in toy_answers(target, 11, seed=3):
        with torch.no_grad():
            logp = model(torch.tensor(answer.tokens[None]).long()).logits[0].log_softmax(-1)
        best = logp[answer.start - 1 : -1].topk(16)
        np.testing.assert_allclose(answer.top_logp, best.values, atol=1e-4)
        assert (best.indices[:, 0].numpy() == answer.tokens[answer.start :]).all()


def test_sampled_answer_depends_only_on_its_request(target):
    requests = [Request("chat", (1, 5, i), 1.0, 12) for i in range(2, 9)]

    def run(order):
        model = RowModel(target, 4, 32)
        return {s.key: s.tokens.tolist() for s in generate(model, order, 3, frozenset({0}), shared_prefix=2, top_k=16)}

    assert run(requests) == run(requests[::-1])


def test_shards_return_what_was_written(tmp_path, answers):
    write_shard(tmp_path, answers[:5])
    write_shard(tmp_path, answers[5:9])
    back = list(read_shards(tmp_path))
    assert [s.key for s in back] == [s.key for s in answers[:9]]
    assert stored_keys(tmp_path) == {s.key for s in answers[:9]}
    for old, new in zip(answers, back, strict=False):
        assert (old.tokens == new.tokens).all()
        assert (old.top_ids == new.top_ids).all()
        np.testing.assert_allclose(old.top_logp, new.top_logp, atol=2e-2)


def test_student_with_all_layers_and_tokens_is_the_target(target, held_out):
    student = student_of(target, (0, 1), list(range(96)), 1.0)
    scores = score(student, held_out)
    assert all(s.acceptance == 1.0 and s.coverage == 1.0 for s in scores.values())
    assert all(s.by_position == (1.0,) * 5 for s in scores.values())


def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path, target, answers):
    corpus = Corpus(answers)
    whole = train(_student(target, answers), corpus, CONFIG, tmp_path / "whole")
    train(_student(target, answers), corpus, CONFIG, tmp_path / "parts", stop_after=9)
    parts = train(_student(target, answers), corpus, CONFIG, tmp_path / "parts")
    assert len(whole) == len(parts) == 44
    np.testing.assert_allclose(parts, whole, atol=1e-5, rtol=0)


def test_distillation_raises_acceptance_and_the_folder_loads(tmp_path, target, answers, held_out):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "draft"
    said = []
    result = distill_from(
        target,
        out,
        CONFIG,
        answers=answers,
        held_out=held_out,
        stop_if_gain_below=-1.0,  # a toy's acceptance wobbles from check to check: train to the end
        reporter=Reporter(say=said.append),
    )
    assert result.helps
    for task, scored in result.proof.scores.items():
        assert scored.acceptance > result.before[task].acceptance
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.num_hidden_layers == 1
    assert len(AutoTokenizer.from_pretrained(out)) == 96
    assert len(read_hot_ids(out)) == 80
    assert read_card(out).provenance["steps"] == 44
    assert "Acceptance per token" in (out / "README.md").read_text()
    again = prove(out, target, held_out)
    assert again.scores == result.proof.scores
    document = again.document()
    keys = ["acceptance", "hot_head_coverage", "draft_step_ms", "file_mb", "provenance", "predicted"]
    assert list(document) == keys
    for gain in document["predicted"].values():
        assert gain["tokens_per_s"] >= gain["plain_tokens_per_s"] > 0
    json.dumps(document)
    assert not (tmp_path / "draft.work").exists()


def test_training_stops_when_it_brings_little(tmp_path, target, answers, held_out):
    idle = replace(CONFIG, learning_rate=1e-9)
    said = []
    result = distill_from(
        target,
        tmp_path / "idle",
        idle,
        answers=answers,
        held_out=held_out,
        stop_if_gain_below=0.02,
        reporter=Reporter(say=said.append),
    )
    assert len(result.losses) == 11
    assert not result.helps
    assert any("stop_if_gain_below" in line for line in said)


def test_a_failed_checkpoint_leaves_the_last_one(tmp_path, target, answers, monkeypatch):
    corpus = Corpus(answers)
    train(_student(target, answers), corpus, CONFIG, tmp_path, stop_after=20)
    before = (tmp_path / CHECKPOINT).read_bytes()

    def full(state, path):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(ConfigError, match="free some disk space"):
        train(_student(target, answers), corpus, CONFIG, tmp_path)
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [CHECKPOINT]


def test_a_checkpoint_of_another_config_is_refused(tmp_path, target, answers):
    train(_student(target, answers), Corpus(answers), CONFIG, tmp_path, stop_after=2)
    with pytest.raises(ConfigError, match=r"seed=0, not 7"):
        train(_student(target, answers), Corpus(answers), replace(CONFIG, seed=7), tmp_path)


def test_unsupported_targets_get_one_sentence(tmp_path, target):
    with pytest.raises(ConfigError, match=r"config\.json"):
        distill(tmp_path / "missing", tmp_path / "out")
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(ConfigError, match="MambaForCausalLM; distillation supports LlamaForCausalLM"):
        distill(other, tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        distill(target, tmp_path / "there")


@pytest.mark.parametrize(("knob", "value"), [("steps", 0), ("soft_share", 1.5), ("init_layers", ()), ("device", "tpu")])
def test_wrong_knobs_are_named(knob, value):
    with pytest.raises(ConfigError, match=knob):
        TrainConfig(**{knob: value})
