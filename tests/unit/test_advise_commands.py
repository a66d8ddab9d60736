"""`plan` and `advise --measure` as people see them, and what is read of a model's folder."""

import io
import json
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from sgl_spec import models, runtime
from sgl_spec.advise import measure_run
from sgl_spec.advise.candidates import _licence
from sgl_spec.advise.families import known_models
from sgl_spec.advise.measure import Measured
from sgl_spec.advise.measure_run import measure_pair
from sgl_spec.advise.plan import Model, PlanRequest, make_plan
from sgl_spec.advise.recommend import recommend
from sgl_spec.advise.shape import shape_from_config, shape_from_folder
from sgl_spec.advise.suggest import suggestions
from sgl_spec.cli import main
from sgl_spec.errors import ConfigError

SMOL = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps(SMOL))
    return tmp_path / "target"


def test_a_plan_as_text_says_whether_it_fits_and_what_would_help(capsys):
    pair = ["plan", "Qwen2.5-72B", "Qwen2.5-1.5B", "--tp-size", "4", "--memory"]
    assert main([*pair, "85.9"]) == 0
    fits = capsys.readouterr().out
    assert "It fits in 85.9 GB per device." in fits
    assert "The draft adds " in fits
    assert "What would help" not in fits
    assert main([*pair, "40"]) == 0
    tight = capsys.readouterr().out
    assert "It does not fit in 40 GB per device." in tight
    changes = tight.partition("What would help (GB saved per device):\n")[2]
    assert "--tp-size 8" in changes
    assert "enough alone" in changes


def test_a_plan_without_a_draft_or_a_device_says_neither(folder, capsys):
    assert main(["plan", str(folder), "--device", "cpu", "--max-total-tokens", "100"]) == 0
    said = capsys.readouterr().out
    assert "The draft adds" not in said
    assert "per device.\n" not in said
    assert "target KV" in said


def test_known_models_are_listed(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plan", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(known.shape.name in said for known in known_models())
    assert main(["plan", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["models"]
    assert [one["name"] for one in listed] == [known.shape.name for known in known_models()]
    assert {"family", "licence", "layers"} <= listed[0].keys()


def test_presets(folder, monkeypatch, capsys):
    monkeypatch.setattr(models, "fetch_demo", lambda: (folder, folder))
    assert main(["plan", "--preset", "demo", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    slots = next(line for line in plan["lines"] if line["name"] == "target KV")["how"]
    assert slots.startswith("16385 slots")
    assert main(["plan", "--preset", "article"]) == 0
    assert "the article's reason" in capsys.readouterr().out
    assert main(["plan", "--preset", "artikel"]) == 2
    assert "preset='artikel' does not exist (did you mean 'article'?)" in capsys.readouterr().err
    assert main(["plan", str(folder), "--preset", "demo"]) == 2
    assert "--preset demo names its models itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "holds no config.json: name a model folder"),
        ("{", "cannot be read as JSON"),
        ("[1]", "is no JSON object"),
    ],
)
def test_a_folder_without_a_shape_is_one_sentence(tmp_path, text, sentence):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        shape_from_folder(tmp_path)


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        (None, None),
        ({}, None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, 4 + 20 / 32),
        ({"quant_method": "awq", "w_bit": 4}, 4 + 20 / 128),  # scales and zeros of groups of 128
        ({"quant_method": "fp8"}, 8.0),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "new"}, None),
    ],
)
def test_bits_of_stored_weights(quantization, bits):
    assert shape_from_config("m", SMOL | {"quantization_config": quantization}).stored_bits == bits


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\n", "apache-2.0"),
        ("---\nlicense:\n---\n", "not stated"),
        ("# A model\n", "not stated"),
        (None, "not stated"),
    ],
)
def test_a_licence_is_that_of_the_card(tmp_path, card, licence):
    if card:
        (tmp_path / "README.md").write_text(card)
    assert _licence(tmp_path) == licence
    assert _licence(None) == "not stated"


def test_what_helps_a_small_cpu_plan(folder):
    """One short request of stored weights: nothing is left to halve, to quantise or to spread."""
    shape = shape_from_folder(folder)
    request = PlanRequest(
        target=Model(shape=shape.model_copy(update={"stored_bits": 8.0})),
        device="cpu",
        max_running_requests=1,
        context_length=1024,
        max_total_tokens=100,
        num_speculative_tokens=0,
        memory_gb=1e-3,
    )
    assert suggestions(request, make_plan(request)) == []
    more = request.model_copy(update={"max_running_requests": 8, "max_total_tokens": None, "memory_gb": 1e-4})
    flags = [change.flags for change in suggestions(more, make_plan(more))]
    assert flags == ["--max-running-requests 4"]


class Server:
    """Answers every policy at its own pace; K=4 is right every time."""

    def __init__(self, *models: str) -> None:
        self.models, self.url = models, "http://fake"

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @staticmethod
    def answer(request: httpx.Request) -> httpx.Response:
        sampling = json.loads(request.content)["sampling_params"]
        options, tokens = sampling["custom_params"]["sgl_spec"], sampling["max_new_tokens"]
        k = options.get("num_speculative_tokens", 0)
        spec = {"num_draft_tokens": 10 * k, "num_accepted_draft_tokens": 10 * k if k == 4 else 0}
        meta = {"completion_tokens": tokens, "e2e_latency": tokens / (20 if k == 4 else 10), "sgl_spec": spec}
        ids = [0] * tokens if k != 8 else [1] * tokens
        return httpx.Response(200, json={"text": "", "output_ids": ids, "meta_info": meta})


def test_a_measured_pair_is_shown_and_recommended(monkeypatch, tmp_path):
    real = httpx.Client
    monkeypatch.setattr(
        measure_run.httpx,
        "Client",
        lambda base_url: real(base_url=base_url, transport=httpx.MockTransport(Server.answer)),
    )
    monkeypatch.setattr(runtime, "Runtime", Server)
    (tmp_path / "prompts").write_text("".join(f"prompt {i}\n" for i in range(9)))
    said = io.StringIO()
    found = measure_pair(Path("big"), Path("small"), tmp_path / "prompts", 20, Console(file=said, width=200))
    assert found["recommendation"]["policy"] == "K=4"
    assert found["recommendation"]["flags"] == "--draft-model-path small --controller fixed --num-speculative-tokens 4"
    rows = {row["policy"]["name"]: row for row in found["measured"]}
    assert (rows["K=4"]["tokens_per_s"], rows["K=4"]["acceptance_rate"]) == (20.0, 1.0)
    assert (rows["plain"]["acceptance_rate"], rows["plain"]["tokens"]) == (None, 9 * 20)
    text = said.getvalue()
    assert "Measuring small for big on 9 prompts, one at a time." in text
    assert "  8 of 9\n" in text
    assert "  9 of 9\n" in text
    assert "  7 of 9\n" not in text
    assert "Speculate: K=4 gives 20.0 tokens/s against 10.0 plain, acceptance 1.00 (360 of 360, K=4)." in text
    shown = {name: next(line for line in text.splitlines() if f"{name} " in line) for name in ("K=2", "K=8")}
    assert "yes" in shown["K=2"]
    assert "NO" in shown["K=8"]  # other tokens than plainly


def test_a_draft_that_proposed_nothing_is_said():
    runs = [
        Measured.model_validate(
            {"policy": {"name": name, "options": {"controller": "throughput"}}, "tokens": 100, "seconds": seconds}
            | {"spread": 0.0, "proposed": 0, "accepted": 0, "ids_equal_plain": True}
        )
        for name, seconds in (("plain", 10.0), ("throughput", 10.5))
    ]
    advice = recommend(runs, "d")
    assert not advice.speculate
    assert advice.reason.endswith("and nothing was proposed.")
