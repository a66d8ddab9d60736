"""Draft candidates and cost-benefit: order, refusals, arithmetic, bad input."""

import json
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_spec.advise.benefit import benefit, break_even
from sgl_spec.advise.candidates import Use, candidates, model_folders, read_target
from sgl_spec.advise.hardware import HARDWARE, Hardware
from sgl_spec.advise.measure import Measured, Policy, measure, policies, read_prompts
from sgl_spec.advise.overlap import overlap, read_vocabulary
from sgl_spec.advise.recommend import recommend
from sgl_spec.advise.resolve import resolve
from sgl_spec.cli import main
from sgl_spec.errors import ConfigError, EngineError

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
        json.dumps({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}, "added_tokens": [{"id": 2, "content": "<s>"}]})
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
def test_bad_input_is_one_sentence(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert captured.err.count("\n") == 1


def fake_server(acceptance: float, draft_ms: float, plain_ms: float = 10.0) -> httpx.Client:
    """A server that takes the time a cost model says and accepts a fixed share of each guess."""

    def answer(request: httpx.Request) -> httpx.Response:
        sampling = json.loads(request.content)["sampling_params"]
        options = sampling["custom_params"]["sgl_spec"]
        k = options.get("num_speculative_tokens", 3 if acceptance > 0.5 else 0)
        k = 0 if options.get("speculate") is False else k
        emitted = sum(acceptance**j for j in range(k + 1))
        rounds = sampling["max_new_tokens"] / emitted
        meta = {
            "completion_tokens": sampling["max_new_tokens"],
            "e2e_latency": rounds * (plain_ms + k * draft_ms) / 1000,
            "sgl_spec": {
                "num_draft_tokens": round(rounds * k),
                "num_accepted_draft_tokens": round(rounds * (emitted - 1)),
            },
        }
        return httpx.Response(200, json={"output_ids": [1, 2, 3], "meta_info": meta})

    return httpx.Client(base_url="http://fake", transport=httpx.MockTransport(answer))


def test_a_good_draft_is_recommended_with_the_best_policy() -> None:
    measured = measure(fake_server(0.9, draft_ms=0.5), ["a", "b", "c"], policies())
    advice = recommend(measured, "D")
    best = max(run.tokens_per_s for run in measured)
    plain = measured[0].tokens_per_s
    assert advice.speculate
    assert advice.policy == "K=8"
    assert advice.flags == "--draft-model-path D --controller fixed --num-speculative-tokens 8"
    assert advice.speedup == pytest.approx(best / plain)


def test_the_adaptive_policy_wins_a_tie() -> None:
    measured = measure(fake_server(0.9, draft_ms=0.5), ["a", "b"], policies(fixed=(2, 3)))
    assert recommend(measured, "D").flags == "--draft-model-path D --controller throughput"


def test_a_bad_draft_is_refused_with_its_acceptance() -> None:
    advice = recommend(measure(fake_server(0.0, draft_ms=2), ["a", "b"], policies()), "D")
    assert not advice.speculate
    assert advice.reason.startswith("do not speculate with this draft")
    assert "acceptance 0.00 (0 of" in advice.reason


@given(st.lists(st.floats(5, 100), min_size=6, max_size=6))
def test_advice_is_within_five_percent_of_the_sweep(speeds: list[float]) -> None:
    measured = [
        Measured(
            policy=policy, tokens=1000, seconds=1000 / speed, spread=0, proposed=9, accepted=3, ids_equal_plain=True
        )
        for policy, speed in zip(policies(), speeds, strict=True)
    ]
    chosen = recommend(measured, "D").policy
    speed = next(run.tokens_per_s for run in measured if run.policy.name == chosen)
    assert speed >= 0.95 * max(speeds)


def test_a_gain_inside_the_noise_is_none() -> None:
    def run(policy: Policy, speed: float) -> Measured:
        return Measured(
            policy=policy, tokens=1000, seconds=1000 / speed, spread=0.05, proposed=9, accepted=3, ids_equal_plain=True
        )

    plain, *others = policies()
    assert not recommend([run(plain, 100), *(run(policy, 108) for policy in others)], "D").speculate
    assert recommend([run(plain, 100), *(run(policy, 112) for policy in others)], "D").speculate


def test_prompts_of_both_kinds_and_refusals(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text('one line\n\n{"prompt": "from json"}\n{"text": "also"}\n')
    assert read_prompts(file) == ["one line", "from json", "also"]
    for text, problem in (
        ("\n", "holds no prompt"),
        ('{"a": 1}', 'no "prompt"'),
        ("{oops", "begins as JSON"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            read_prompts(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts(tmp_path / "nothing")


def test_measure_refuses_before_starting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text("hello\n")
    assert main(["advise", "Qwen3-8B", "--measure", str(prompts)]) == 2
    assert "needs the target as a model folder" in capsys.readouterr().err
    target = folder(tmp_path / "target", 4, {"a": 0})
    assert main(["advise", str(target), "--measure", str(prompts)]) == 2
    assert "found no draft folder" in capsys.readouterr().err


def test_a_dead_server_is_one_sentence() -> None:
    client = httpx.Client(base_url="http://x", transport=httpx.MockTransport(lambda _: httpx.Response(500)))
    with pytest.raises(EngineError, match="the server failed while policy plain"):
        measure(client, ["a"], policies())
