"""Text for a toy target: resumable answers, labels for own text, and draft folders that cannot be right."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from sgl_spec.draft.model import DraftCard, assemble, read_card, read_hot_ids, shipped_digest, write_shipped
from sgl_spec.errors import ConfigError
from sgl_spec.train import rows, texts
from sgl_spec.train.student import student_of

WORDS = [f"w{i}" for i in range(2, 60)]


@pytest.fixture
def few_prompts(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "cache_root", lambda: tmp_path)
    for name, offset in (("training_prompts", 0), ("held_out_prompts", 20)):
        prompts = {t: [f"{WORDS[offset + i]} {WORDS[i]}" for i in range(6)] for t in texts.TASKS}
        monkeypatch.setattr(texts, name, prompts.__getitem__)
    monkeypatch.setattr(texts, "SLOTS", 4)
    monkeypatch.setattr(texts, "HELD_OUT_TOKENS", 8)


def test_held_out_answers_are_made_once(target, few_prompts, monkeypatch):
    counts = []
    first = texts.held_out_answers(target, lambda done, of: counts.append((done, of)))
    assert len(first) == 18
    assert counts[-1] == (18, 18)
    monkeypatch.setattr(texts, "RowModel", None)
    again = texts.held_out_answers(target)
    assert [s.tokens.tolist() for s in again] == [s.tokens.tolist() for s in first]


def test_training_answers_grow_and_never_repeat(target, few_prompts, monkeypatch):
    monkeypatch.setattr(texts, "_MIN_DOCUMENT", 2)
    some = texts.training_answers(target, 30, answer_tokens=10)
    every = texts.training_answers(target, 10_000, answer_tokens=10)
    keys = [s.key for s in every]
    assert len(set(keys)) == len(keys) > len(some)
    assert {s.task for s in every} == {"chat", "code", "summarization"}
    assert keys[: len(some)] == [s.key for s in some]


def test_own_text_is_labelled_by_the_target(tmp_path, target):
    from transformers import AutoModelForCausalLM

    lines = [{"text": " ".join(WORDS[:20])}, {"messages": [{"content": "w3 w4 w5"}]}]
    (tmp_path / "own.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    labelled = texts.labelled_text(target, [tmp_path / "own.jsonl"], chunk=12, top_k=8)
    assert [len(s.tokens) for s in labelled] == [12, 8, 3]
    model = AutoModelForCausalLM.from_pretrained(target)
    with torch.no_grad():
        logp = model(torch.tensor(labelled[0].tokens[None]).long()).logits[0].log_softmax(-1)
    np.testing.assert_allclose(labelled[0].top_logp, logp[:-1].topk(8).values, atol=1e-4)


def test_bad_text_files_are_named(tmp_path, target):
    (tmp_path / "own.jsonl").write_text('{"text": "w3 w4"}\n{"other": 1}\n')
    with pytest.raises(ConfigError, match="line 2"):
        texts.labelled_text(target, [tmp_path / "own.jsonl"])
    with pytest.raises(ConfigError, match="cannot be read"):
        texts.labelled_text(target, [tmp_path / "none.txt"])


def test_a_shipped_draft_is_assembled_with_its_target(tmp_path, target):
    student = student_of(target, (0,), list(range(0, 96, 2)), 1.0)
    small, full = tmp_path / "small", tmp_path / "full"
    card = DraftCard(target="toy")
    write_shipped(small, student.config, student.trained_state(), student.hot_ids.tolist(), card)
    digest = shipped_digest(small)
    full.mkdir()
    assemble(small, target, full)
    assert read_hot_ids(full) == list(range(0, 96, 2))
    assert read_card(full) == card
    rights = {file.stat().st_mode for folder in (small, full) for file in folder.iterdir()}
    (tmp_path / "new").touch()
    assert rights == {(tmp_path / "new").stat().st_mode}  # safetensors alone would keep them to their owner
    assert read_card(target) is None
    assert read_hot_ids(target) is None
    card_file = small / "sgl_spec_draft.json"
    card_file.write_text(card_file.read_text().replace("bf16", "int8"))
    assert shipped_digest(small) != digest
    card_file.write_text(card_file.read_text().replace("int8", "int3"))
    with pytest.raises(ConfigError, match="head_storage='int3'"):
        read_card(small)


def test_a_draft_of_another_target_is_refused(tmp_path, target):
    student = student_of(target, (0,), [3, 4, 5], 1.0)
    small = tmp_path / "small"
    config = student.config | {"vocab_size": 97}
    write_shipped(small, config, student.trained_state(), [3, 4, 5], DraftCard(target="toy"))
    (tmp_path / "full").mkdir()
    with pytest.raises(ConfigError, match="97 x 128 embedding"):
        assemble(small, target, tmp_path / "full")
    (small / "hot_token_ids.safetensors").unlink()
    with pytest.raises(ConfigError, match="lacks hot_token_ids"):
        shipped_digest(small)


@pytest.mark.parametrize(
    ("card", "sentence"),
    [
        ({"target": "toy", "colour": "red"}, "unknown key 'colour'"),
        ({}, "cannot be read"),
        ("{", "cannot be read"),
    ],
)
def test_a_damaged_card_is_named(tmp_path, card, sentence):
    (tmp_path / "sgl_spec_draft.json").write_text(card if isinstance(card, str) else json.dumps(card))
    with pytest.raises(ConfigError, match=sentence):
        read_card(tmp_path)


@pytest.mark.parametrize("ids", [[], [3, 2], [2, 2], [-1, 5], [5, 96]])
def test_hot_tokens_that_cannot_be_right(tmp_path, target, ids):
    student = student_of(target, (0,), [3, 4, 5], 1.0)
    write_shipped(tmp_path / "d", student.config, student.trained_state(), [3, 4, 5], DraftCard(target="toy"))
    file = tmp_path / "d" / "hot_token_ids.safetensors"
    save_file({"ids": np.array(ids, dtype=np.int64)}, file)
    with pytest.raises(ConfigError, match="not sorted ids below the vocabulary's 96"):
        read_hot_ids(tmp_path / "d")
    file.unlink()
    with pytest.raises(ConfigError, match="lacks hot_token_ids"):
        read_hot_ids(tmp_path / "d")


def test_a_target_without_a_tokenizer(tmp_path, target):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(target / name)
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        texts.target_folder(tmp_path)
    with pytest.raises(ConfigError, match="no tokenizer that Transformers reads"):
        texts.Speaker(tmp_path)


def test_prompts_are_written_by_the_chat_template_if_there_is_one(target):
    speaker = texts.Speaker(target)
    assert speaker.prompt_ids("w5 w6") == (5, 6)
    speaker.tokenizer.chat_template = "w9 {{ messages[0].content }}{% if add_generation_prompt %} w10{% endif %}"
    assert speaker.prompt_ids("w5 w6") == (9, 5, 6, 10)


def test_the_compiler_of_the_row_model_is_named_where_it_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for compiler, sentence in (
        ("no-such-compiler", "is not installed"),
        ("false", "cannot compile rows.cpp: status 1"),
    ):
        monkeypatch.setenv("CXX", compiler)
        with pytest.raises(ConfigError, match=f"CXX={compiler} {sentence}"):
            rows._library.__wrapped__()
    assert list(tmp_path.rglob("*.so")) == []
