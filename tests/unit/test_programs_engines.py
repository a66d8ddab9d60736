"""The same programs on other engines: an OpenAI endpoint that drafts for another, a vLLM server, Transformers."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from rich.console import Console

from programs import chat as chat_program
from programs.chat import Conversation, spending
from programs.command import run
from programs.engine_openai import ChatBackend, Model
from programs.engine_vllm import CompletionsBackend
from programs.engines import Engine, connected, prices
from programs.state import check, text_of
from programs.summarization import take_notes, write_summary
from sgl_spec.chat_template import cut_template
from sgl_spec.cli import main
from sgl_spec.config import SpecConfig
from sgl_spec.errors import ConfigError, EngineError
from sgl_spec.export import vllm_config, vllm_differences
from tests.unit.fake_engine import FakeEngine, answer_to

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_cheap_model_drafts_for_a_dear_one() -> None:
    with FakeEngine() as cheap, FakeEngine() as dear:
        target = Model(dear.url + "/v1", "dear", "key", input_price=10.0, output_price=30.0)
        backend = ChatBackend(target, Model(cheap.url, "cheap", input_price=1.0, output_price=2.0))
        talk = Conversation(backend, "Be brief.", [], max_tokens=9, temperature=0.0)
        turn = talk.ask("One?", Console(quiet=True))
        check(chat_program.chat.run("Two?", backend=backend))
    assert turn["answer"] == answer_to("One?")
    assert [body["model"] for body in cheap.bodies + dear.bodies] == ["cheap"] * 2 + ["dear"] * 2
    assert dear.bodies[0]["prediction"] == {"type": "content", "content": answer_to("One?")}
    assert "prediction" not in cheap.bodies[0]
    assert dear.bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
    ]
    spent = backend.stats()
    assert (spent["accepted_prediction_tokens"], spent["rejected_prediction_tokens"]) == (10, 0)
    assert spent["draft"]["cost"] == pytest.approx((6 * 1 + 12 * 2) / 1e6)
    assert spent["cost"] == pytest.approx((6 * 1 + 12 * 2 + 6 * 10 + 12 * 30) / 1e6)
    assert "prediction: 10 taken over, 0 not" in spending(spent)


def test_a_wrong_draft_changes_nothing_but_the_counts() -> None:
    with FakeEngine(reply=lambda prompt: "something else") as cheap, FakeEngine() as dear:
        backend = ChatBackend(Model(dear.url, "dear"), Model(cheap.url, "cheap"))
        assert text_of(chat_program.chat.run("One?", backend=backend), "answer") == answer_to("One?")
        assert (backend.accepted, backend.rejected) == (0, 5)


def test_openai_refuses_what_the_endpoint_cannot_do() -> None:
    @sgl.function
    def begun(s: Any) -> None:
        s += sgl.user("x")
        s += sgl.assistant("It is " + sgl.gen("a"))

    with FakeEngine() as engine:
        backend = ChatBackend(Model(engine.url, "m"))
        with pytest.raises(ConfigError, match="answers whole assistant messages"):
            check(begun.run(backend=backend))
        with pytest.raises(ConfigError, match="cannot select"):
            check(write_summary.run("text", backend=backend))
    with pytest.raises(EngineError, match="No server answers at"):
        check(chat_program.chat.run("One?", backend=ChatBackend(Model(engine.url, "m"))))


def test_chat_command_reports_the_cost(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine() as engine:
        arguments = ["Hi", "--engine", "openai", "--url", engine.url, "--model-path", "dear", "--json"]
        assert run(chat_program.app, "chat", [*arguments, "--draft-model-path", "cheap", "--price", "10/30"]) == 0
    assert json.loads(capsys.readouterr().out)["spent"]["cost"] == pytest.approx((3 * 10 + 6 * 30) / 1e6)
    with pytest.raises(ConfigError, match="price='1' is no price"):
        prices("price", "1")


def test_vllm_takes_the_programs_own_template() -> None:
    with FakeEngine() as engine:
        backend = CompletionsBackend(engine.url, "m")
        state = chat_program.chat.run("One?", backend=backend)
        assert text_of(state, "answer") == answer_to("USER:One?\nASSISTANT:")
        streamed = Conversation(backend, "", [], max_tokens=9, temperature=0.0).ask("One?", Console(quiet=True))
        assert streamed["answer"] == answer_to("USER:One?\nASSISTANT:")
        assert streamed["completion_tokens"] == 6
        assert len(check(take_notes.run(["a", "b"], backend=backend))["notes"]) == 2
        assert check(write_summary.run("text", backend=backend))["quality"] == "good"
        assert backend.usage.completion_tokens == 5 * 6
    assert engine.bodies[0]["prompt"] == "USER:One?\nASSISTANT:"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": Engine.vllm, "model_path": "m"}, "needs --url"),
        ({"engine": Engine.openai, "url": "http://x"}, "needs --model-path"),
        ({"engine": Engine.transformers, "url": "http://x"}, "exclude each other"),
        ({"draft_url": "http://x"}, "is for engine=openai"),
        ({"draft_model_path": "d"}, "needs model_path"),
    ],
)
def test_engine_options_that_do_not_go_together(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence), connected(**options):
        pass


# The model's own chat template


def test_the_models_template_is_cut_and_rebuilds_conversations(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    template = cut_template(tmp_path)
    assert template is not None
    assert template.role_prefix_and_suffix["assistant"] == ("<|im_start|>assistant\n", "<|im_end|>\n")
    assert template.default_system_prompt == "You help."
    assert template.stop_str == ["<|im_end|>"]


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
        "{% for m in messages %}{{ m.role }}{{ loop.index }}:{{ m.content }}\n{% endfor %}",
        "{{ raise_exception('no system') }}",
        "{% for %}",
    ],
)
def test_a_template_that_cannot_be_cut_exactly_is_left_alone(source: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
    assert cut_template(tmp_path) is None
    assert cut_template(tmp_path / "absent") is None


# sgl-spec export vllm


def test_export_prints_a_command_that_vllm_knows(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", "vllm", "--model-path", "T", "--draft-model-path", "D", "--num-speculative-tokens", "3"]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["speculative_config"] == {"method": "draft_model", "model": "D", "num_speculative_tokens": 3}
    assert found["command"][:4] == ["vllm", "serve", "T", "--speculative-config"]
    assert json.loads(found["command"][4]) == found["speculative_config"]
    assert "drafts 3 tokens in every round" in captured.err
    assert main(["export", "vllm", "--model-path", "T", "--controller", "clever"]) == 2


def test_export_gives_vllm_a_draft_without_our_list_of_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    draft = tmp_path / "my draft"
    draft.mkdir()
    for name in ("config.json", "model.safetensors", "hot_token_ids.safetensors"):
        (draft / name).touch()
    assert main(["export", "vllm", "--model-path", "T", "--draft-model-path", "my draft", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    subprocess.run(["sh", "-ec", "\n".join(found["prepare"])], check=True)
    seen = tmp_path / found["speculative_config"]["model"]
    assert {file.name for file in seen.iterdir()} == {"config.json", "model.safetensors"}
    assert all(file.resolve().parent == draft for file in seen.iterdir())


def test_export_without_a_draft_and_what_it_cannot_carry() -> None:
    plain = SpecConfig.parse({"model_path": "T", "num_speculative_tokens": 4, "controller": "fixed"})
    assert vllm_config(plain) == {
        "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4
    }  # fmt: skip
    assert not any("controller" in note for note in vllm_differences(plain))
    none = SpecConfig.parse({"model_path": "T", "num_speculative_tokens": 0})
    assert vllm_config(none) is None
    pyramid = SpecConfig.parse({"model_path": "T", "draft_model_path": ["a", "b"]})
    with pytest.raises(ConfigError, match="is a pyramid"):
        vllm_config(pyramid)
    drafted = SpecConfig.parse({"model_path": "T", "draft_model_path": "D"})
    assert (vllm_config(drafted, tp_size=4) or {})["draft_tensor_parallel_size"] == 4
