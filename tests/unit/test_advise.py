"""Draft candidates and cost-benefit: order, refusals, arithmetic, bad input."""

import json
from pathlib import Path

import pytest

from sgl_spec.advise.benefit import benefit, break_even
from sgl_spec.advise.candidates import Use, candidates, model_folders, read_target
from sgl_spec.advise.hardware import HARDWARE, Hardware
from sgl_spec.advise.overlap import overlap, read_vocabulary
from sgl_spec.advise.resolve import resolve
from sgl_spec.cli import main
from sgl_spec.errors import ConfigError

H100 = HARDWARE["h100"]


def folder(path: Path, layers: int, vocabulary: dict[str, int], card: str = "") -> Path:
    path.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "vocab_size": 512,
        "max_position_embeddings": 128,
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    if card:
        (path / "README.md").write_text(card)
    return path


def find(name: str, use: Use) -> list:
    model, _ = resolve(name)
    return candidates(read_target(name, model), [], use)


def test_the_targets_family_comes_first_and_slow_drafts_last() -> None:
    found = find("Qwen2.5-72B", Use(hardware=H100.shared_by(4)))
    assert found[0].same_family
    assert found[0].name == "Qwen2.5-1.5B-Instruct"
    assert not found[-1].usable
    assert "32B" in found[-1].name
    assert [c.name for c in found if c.article_claim] == ["Qwen2.5-7B-Instruct"]
    assert all(c.vocabulary_overlap == 1.0 for c in found)


def test_other_families_are_never_offered() -> None:
    names = {candidate.name for candidate in find("Qwen3-32B", Use(hardware=H100))}
    assert names == {"Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-30B-A3B"}


def test_a_dense_draft_for_few_active_parameters_is_refused() -> None:
    found = {c.name: c for c in find("Qwen3-30B-A3B", Use(hardware=H100))}
    assert not found["Qwen3-8B"].usable
    assert found["Qwen3-8B"].benefit.break_even_acceptance is None


def test_local_folders_are_compared_by_their_ids(tmp_path: Path) -> None:
    words = {f"w{i}": i for i in range(100)}
    target = folder(tmp_path / "big", 40, words)
    folder(tmp_path / "all" / "same", 2, words, card="---\nlicense: mit\n---\n")
    folder(tmp_path / "all" / "half", 2, {word: i if i < 50 else i + 1 for word, i in words.items()})
    model, _ = resolve(str(target))
    use = Use(hardware=HARDWARE["cpu-core"], context=4096)
    found = candidates(read_target(str(target), model), model_folders(tmp_path), use)
    assert [(c.name, c.usable, c.vocabulary_overlap) for c in found] == [
        ("same", True, 1.0),
        ("half", False, 0.5),
    ]
    assert found[0].licence == "mit"
    assert "first 128 tokens" in found[0].why
    assert "50.0%" in found[1].why


def test_vocabulary_reading(tmp_path: Path) -> None:
    assert read_vocabulary(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(
            {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}, "added_tokens": [{"id": 2, "content": "<s>"}]}
        )
    )
    assert read_vocabulary(tmp_path) == {"a": 0, "b": 1, "<s>": 2}
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read as a tokenizer"):
        read_vocabulary(tmp_path)
    assert overlap({}, {"a": 0}) == 0.0


def test_benefit_equals_the_closed_form_when_memory_bound() -> None:
    """Leviathan et al. 2023, theorem 3.8: (1 - a^(K+1)) / ((1 - a)(cK + 1))."""
    target, draft = resolve("Llama-3.1-70B")[0], resolve("Llama-3.2-1B")[0]
    hardware = Hardware(name="x", bandwidth_gb_s=100, tflops=1e6, layer_us=0)
    c = hardware.step_s(draft, 1) / hardware.step_s(target, 1)
    for outcome in benefit(target, draft, hardware, price_per_hour=3.6).outcomes:
        a, k = outcome.acceptance, outcome.num_speculative_tokens
        assert outcome.speedup == pytest.approx((1 - a ** (k + 1)) / ((1 - a) * (c * k + 1)))
        assert outcome.price_per_million == pytest.approx(outcome.ms_per_token)  # 0.001 a second


def test_a_loaded_device_gains_less() -> None:
    target, draft = resolve("Llama-3.1-8B")[0], resolve("Llama-3.2-1B")[0]
    gains = [benefit(target, draft, H100, requests).outcomes[2].speedup for requests in (1, 64, 512)]
    assert gains[0] >= gains[1] > gains[2]
    assert gains[2] == pytest.approx(1.0, abs=0.2)


def test_break_even() -> None:
    assert break_even(lambda acceptance: 0.7 + acceptance) == pytest.approx(0.3)
    assert break_even(lambda _: 0.5) is None


def test_advise_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "Qwen2.5-72B", "--tp-size", "4", "--price-per-hour", "10", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["best"] == "Qwen2.5-1.5B-Instruct"
    assert document["candidates"][0]["benefit"]["plain_price_per_million"] > 0


def test_no_candidate_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "SmolLM2-135M", "--hardware", "cpu-core", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["best"] is None
    assert "distil one" in document["advice"][0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing"], "neither a model folder nor a known model"),
        (["Qwen3-8B", "--hardware", "h1000"], "did you mean 'h100'?"),
        (["Qwen3-8B", "--search", "/nowhere"], "search=/nowhere is no folder"),
        (["Qwen3-8B", "--requests", "0"], "--requests"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert captured.err.count("\n") == 1
