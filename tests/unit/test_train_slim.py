"""Students that are narrower than their target, tune its embeddings, or keep their head in fewer bits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sgl_spec.cpu.linear import STORAGES, PackedLinear, kept
from sgl_spec.draft.model import read_card
from sgl_spec.errors import ConfigError
from sgl_spec.train.config import TrainConfig
from sgl_spec.train.corpus import Corpus
from sgl_spec.train.distil import distill_from
from sgl_spec.train.loop import train
from sgl_spec.train.proof import prove
from sgl_spec.train.slim import Slim, slimmed
from sgl_spec.train.student import Student, student_from, student_of
from tests.unit.test_train_distil import CONFIG
from tests.unit.train_toys import VOCABULARY, toy_answers

pytestmark = pytest.mark.usefixtures("one_thread")
WIDE = {
    "hidden_size": 12,
    "intermediate_size": 10,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 4,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
TUNED = replace(CONFIG, mlp_width=128, tune_embeddings=True, head_storage="int8")


@pytest.fixture(scope="module")
def answers(target):
    return toy_answers(target, 120, seed=1, temperature=1.0)


@pytest.fixture(scope="module")
def held_out(target):
    return toy_answers(target, 20, seed=2)


def _wide() -> Student:
    torch.manual_seed(3)
    return Student(WIDE, torch.randn(20, 12), torch.randn(20, 12), torch.arange(20))


def _layer(student: Student) -> dict[str, torch.Tensor]:
    prefix = "model.layers.0."
    return {n.removeprefix(prefix): v.clone() for n, v in student.state_dict().items() if n.startswith(prefix)}


def _load(student: Student, layer: dict[str, torch.Tensor]) -> Student:
    norm = {"model.norm.weight": torch.ones(12)}
    student.load_state_dict({f"model.layers.0.{name}": value for name, value in layer.items()} | norm)
    return student


def test_what_is_left_out_is_the_weakest_and_adds_nothing_if_it_is_zero():
    """A layer with one weak KV group and two weak neurons computes the same without them."""
    layer = _layer(_wide())
    layer["self_attn.o_proj.weight"][:, 8:16] = 0.0  # the second of three groups of two heads of 4
    layer["mlp.down_proj.weight"][:, [2, 7]] = 0.0
    config = Slim(heads=4, mlp_width=8).config(WIDE)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["intermediate_size"]) == (4, 2, 8)
    assert (config["head_dim"], config["hidden_size"]) == (4, 12)
    whole = _load(_wide(), layer)
    small = Student(config, whole.embedding, whole.head, whole.hot_ids)
    _load(small, slimmed(layer, WIDE, config))
    tokens = torch.arange(9)
    with torch.no_grad():
        torch.testing.assert_close(small(tokens, [5, 4]), whole(tokens, [5, 4]))


def test_nothing_named_leaves_all(target):
    config = Slim().config(WIDE)
    assert config == WIDE
    layer = _layer(_wide())
    assert all(torch.equal(value, layer[name]) for name, value in slimmed(layer, WIDE, config).items())
    with_default = {key: value for key, value in WIDE.items() if key != "head_dim"}
    assert Slim(heads=2).config(with_default)["head_dim"] == 2  # 12 wide, 6 heads


@pytest.mark.parametrize(
    ("slim", "sentence"),
    [
        (Slim(heads=3), r"heads=3 .* multiple of 2 up to 6"),
        (Slim(heads=8), r"heads=8 .* multiple of 2 up to 6"),
        (Slim(heads=0), r"heads=0 .* multiple of 2 up to 6"),
        (Slim(mlp_width=0), r"mlp_width=0 .* 1 to 10"),
        (Slim(mlp_width=11), r"mlp_width=11 .* 1 to 10"),
        (Slim(mlp_width=-1), r"mlp_width=-1 .* 1 to 10"),
    ],
)
def test_sizes_that_do_not_fit_are_named(slim, sentence):
    with pytest.raises(ConfigError, match=sentence):
        slim.config(WIDE)


def test_a_narrow_tuned_draft_learns_resumes_and_loads(tmp_path, target, answers, held_out):
    from transformers import AutoModelForCausalLM

    result = distill_from(
        target, tmp_path / "draft", TUNED, answers=answers, held_out=held_out, stop_if_gain_below=-1.0
    )
    assert result.helps
    card = read_card(result.folder)
    assert (card.head_storage, card.own_embeddings) == ("int8", True)
    assert "Its head is the target's" in (result.folder / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(result.folder)
    assert model.config.intermediate_size == 128
    assert not model.config.tie_word_embeddings
    own = AutoModelForCausalLM.from_pretrained(target)
    assert torch.equal(model.lm_head.weight, own.lm_head.weight)
    assert not torch.equal(model.model.embed_tokens.weight, own.model.embed_tokens.weight)
    assert prove(result.folder, target, held_out).scores == result.proof.scores
    assert result.proof.file_mb > 2 * VOCABULARY * 128 / 1e6  # the embeddings must be shipped
    answer = held_out[0]
    student = student_from(result.folder, list(range(VOCABULARY)))
    with torch.no_grad():
        hidden = student(torch.from_numpy(answer.tokens).long(), [len(answer.tokens)])
        logits = model(torch.from_numpy(answer.tokens[None]).long()).logits[0]
    torch.testing.assert_close(hidden @ student.head.T, logits, atol=1e-3, rtol=1e-3)


def test_a_resumed_tuned_training_equals_an_uninterrupted_one(tmp_path, target, answers):
    corpus, config = Corpus(answers), replace(TUNED, steps=12, checkpoint_every=100)

    def student() -> Student:
        return student_of(target, (0,), corpus.hot_tokens(80, 96), 1.0, slim=config.slim, tune_embeddings=True)

    whole = train(student(), corpus, config, tmp_path / "whole")
    train(student(), corpus, config, tmp_path / "parts", stop_after=5)
    np.testing.assert_allclose(train(student(), corpus, config, tmp_path / "parts"), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_head_is_judged_in_the_numbers_that_the_engine_keeps(storage):
    torch.manual_seed(1)
    weight = torch.randn(33, 16) * torch.logspace(-3, 2, 33)[:, None]
    weight[7] = 0.0
    torch.testing.assert_close(kept(weight, storage).T, PackedLinear(weight, storage=storage).forward(torch.eye(16)))


def test_an_unknown_head_storage_is_named():
    with pytest.raises(ConfigError, match="head_storage='int3'"):
        TrainConfig(head_storage="int3")


def test_a_checkpoint_of_another_width_is_refused(tmp_path, target, answers):
    corpus, config = Corpus(answers), replace(TUNED, steps=4, tune_embeddings=False)
    make = {"hot_ids": corpus.hot_tokens(80, 96), "initial_norm": 1.0}
    train(student_of(target, (0,), **make, slim=config.slim), corpus, config, tmp_path, stop_after=1)
    other = replace(config, mlp_width=64)
    with pytest.raises(ConfigError, match="mlp_width=128, not 64"):
        train(student_of(target, (0,), **make, slim=other.slim), corpus, other, tmp_path)
