"""The memory plan: formulas against published models, the article's figures, suggestions."""

import json
import struct
from pathlib import Path

import pytest

from sgl_spec.advise.article import CLAIMED, article_plan
from sgl_spec.advise.families import find, known_models, same_tokenizer
from sgl_spec.advise.plan import Model, PlanRequest, make_plan
from sgl_spec.advise.shape import ModelShape, shape_from_config
from sgl_spec.advise.suggest import suggestions
from sgl_spec.advise.weights import parameters_of
from sgl_spec.cli import main
from sgl_spec.errors import ConfigError

SMOL = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
}


def model(name: str) -> Model:
    known = find(name)
    assert known is not None
    return Model(shape=known.shape)


@pytest.mark.parametrize("known", known_models(), ids=lambda k: k.shape.name)
def test_formulas_give_the_published_number_of_parameters(known) -> None:
    assert known.shape.parameters / 1e9 == pytest.approx(known.published, rel=0.015)


def test_config_json_equals_the_table() -> None:
    assert shape_from_config("SmolLM2-135M-Instruct", SMOL) == model("SmolLM2-135M").shape


def test_latent_attention_and_experts() -> None:
    shape = shape_from_config("DeepSeek-V3", DEEPSEEK_V3)
    assert shape.parameters / 1e9 == pytest.approx(671, rel=0.01)
    assert shape.active_parameters / 1e9 == pytest.approx(37, rel=0.02)
    assert shape.kv_elements_per_token == 61 * 576


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"mamba_d_state": 16}, "recurrent state"),
        ({"num_hidden_layers": 0}, "no whole number above 0"),
        ({"hidden_size": "big"}, "no whole number above 0"),
    ],
)
def test_foreign_models_are_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        shape_from_config("x", {**SMOL, **change})


def test_a_missing_size_is_named() -> None:
    with pytest.raises(ConfigError, match="lacks 'vocab_size'"):
        shape_from_config("x", {k: v for k, v in SMOL.items() if k != "vocab_size"})


def write_tensors(path: Path, tensors: dict[str, list[int]]) -> None:
    entry = {"dtype": "F32", "data_offsets": [0, 0]}
    header = json.dumps({name: entry | {"shape": size} for name, size in tensors.items()}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def test_files_are_counted_and_a_shared_head_only_once(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": [100, 8],
        "lm_head.weight": [100, 8],
        "a.weight": [8, 8],
        "norm": [8],
    }
    write_tensors(tmp_path / "model.safetensors", tensors)
    shape = ModelShape(
        name="x", layers=1, hidden=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=100, context=64, tied=True
    )
    assert parameters_of(shape, tmp_path) == (64, 808)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="no whole safetensors file"):
        parameters_of(shape, tmp_path)


def test_kv_and_reserve_by_hand() -> None:
    request = PlanRequest(
        target=model("Qwen2.5-72B"),
        draft=model("Qwen2.5-7B"),
        tp_size=4,
        context_length=1000,
        max_running_requests=4,
        num_speculative_tokens=5,
    )
    made = make_plan(request)
    assert made.line("target KV").gb == pytest.approx(4001 * 80 * 2 * 8 * 128 * 2 / 1e9)
    assert made.line("draft KV").gb == pytest.approx(4001 * 28 * 2 * 4 * 128 * 2 / 1e9)
    assert made.line("K reserve").gb == pytest.approx(4 * 2 * 6 * (327680 + 57344) / 1e9)
    assert made.line("target weights").gb_per_device == pytest.approx(72.706e9 * 2 / 4 / 1e9, rel=1e-4)
    assert made.total_gb == pytest.approx(sum(line.gb for line in made.lines))


def test_few_kv_heads_are_copied_to_every_device() -> None:
    assert model("Qwen2.5-1.5B").kv_bytes_per_token(8) == 4 * model("Qwen2.5-1.5B").kv_bytes_per_token(1)


def test_suggestions_hold_what_they_promise() -> None:
    request = PlanRequest(
        target=model("Llama-3.1-8B"), draft=model("Llama-3.2-3B"), context_length=8192, memory_gb=24.0
    )
    plan = make_plan(request)
    assert plan.fits is False
    changes = suggestions(request, plan)
    assert {"--speculative-draft-model-quantization fp8", "--tp-size 2", "--kv-cache-dtype fp8_e4m3"} <= {
        change.flags for change in changes
    }
    assert any(change.flags.endswith("Llama-3.2-1B-Instruct") for change in changes)
    missing = plan.total_gb_per_device - 24.0
    for change in changes:
        assert change.enough == (change.saves_gb_per_device >= missing)
    roomy = request.model_copy(update={"memory_gb": 200.0})
    assert suggestions(roomy, make_plan(roomy)) == []


def test_the_article_adds_up_to_102() -> None:
    article = article_plan()
    assert [line.gb for line in article.lines] == [72, 7, 16, 2, 5]
    assert article.total_gb == 102
    assert article.recomputed.line("target KV").gb == pytest.approx(CLAIMED["target KV"][0], rel=1e-3)
    assert article.recomputed.line("draft KV").gb == pytest.approx(2.8, rel=1e-3)
    assert [p.claimed for p in article.percentages] == [13, 10, 5]
    assert all(p.matches for p in article.percentages)
    assert any("12.5%" in text for text in article.percentages[0].matches)


def test_families_share_ids_only_where_known() -> None:
    assert same_tokenizer("Qwen2.5", "Qwen2.5-Coder")
    assert not same_tokenizer("Qwen2.5", "Qwen3")
    assert find("Qwen/qwen2.5-72b-instruct") is find("Qwen2.5-72B")


def test_preset_article_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--preset", "article", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total_gb"] == 102
    assert {line["name"]: line["gb"] for line in document["lines"]} == {k: gb for k, (gb, _) in CLAIMED.items()}


def test_plan_of_folders_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOL))
    arguments = [
        "plan",
        str(tmp_path),
        str(tmp_path),
        "--device",
        "cpu",
        "--max-total-tokens",
        "16384",
        "--json",
    ]
    assert main([*arguments, "--memory", "1"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    lines = {line["name"]: line["gb"] for line in document["lines"]}
    head = 49152 * 576 / 1e9
    assert lines["target weights"] == pytest.approx(0.538 + 4 * head + head, rel=1e-3)  # head packed, and in int8
    assert lines["draft weights"] == pytest.approx(0.538 + 4 * head, rel=1e-3)
    assert lines["draft KV"] == pytest.approx(16385 * 30 * 2 * 3 * 64 * 4 / 1e9)
    assert document["fits"] is False
    assert document["suggestions"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "needs a target"),
        (["nothing-of-the-kind"], "neither a model folder nor a known model"),
        (["Qwen2.5-72"], "did you mean 'Qwen2.5-"),
        (["Qwen3-8B", "--dtype", "bf16"], "dtype='bf16' is not known here (did you mean 'bfloat16'?)"),
        (["Qwen3-8B", "--quantization", "int8"], "quantization='int8'"),
        (["Qwen3-8B", "--kv-cache-dtype", "fp8"], "kv_cache_dtype='fp8'"),
        (["Qwen3-8B", "--device", "gpu"], "device='gpu'"),
        (["Qwen3-8B", "--tp-size", "0"], "--tp-size"),
        (["Qwen3-8B", "--context-lenght", "5"], "--context-length"),
        (["--preset", "artikle"], "did you mean 'article'?"),
        (["Qwen3-8B", "--preset", "article"], "leave out 'Qwen3-8B' or the preset"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert captured.err.count("\n") == 1
