"""The programs on the real engine: same answers with and without drafting, streams whole, statistics in place."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import sgl_spec
from programs import chat as chat_program
from programs import code, summarization
from programs.command import run
from programs.origin import Origins, tokens_by_source
from programs.state import check, pieces, text_of
from sgl_spec.batch.endpoint import CountingEndpoint
from sgl_spec.server_error import ServerError

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def backend(demo_server: Any) -> CountingEndpoint:
    return CountingEndpoint(demo_server.url)


def test_chat_streams_the_same_text_with_and_without_drafting(backend: CountingEndpoint) -> None:
    texts = []
    for speculate in (True, False):
        with sgl_spec.options(program="chat", speculate=speculate):
            state = chat_program.chat.run("Count to five.", max_tokens=16, stream=True, backend=backend)
            texts.append("".join(text for text, _ in pieces(state, "answer")))
            meta = state.get_meta_info("answer")
        assert texts[-1] == state["answer"]
        assert (meta["sgl_spec"]["reason_not_speculated"] is None) == speculate
    assert texts[0] == texts[1] != ""


def test_streamed_text_is_coloured_by_its_origin(backend: CountingEndpoint) -> None:
    plain = chat_program.chat.run("Count to five.", max_tokens=16, backend=backend)["answer"]
    with sgl_spec.options(prediction=plain, cache=False, num_speculative_tokens=4):
        state = chat_program.chat.run("Count to five.", max_tokens=16, stream=True, backend=backend)
        origins = Origins()
        seen = [origins.of(meta) for _, meta in pieces(state, "answer")]
    assert state["answer"] == plain
    assert "prediction" in seen
    assert tokens_by_source(state.get_meta_info("answer"))["prediction"] > 0


def test_chat_command_resumes_a_conversation(
    demo_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "talk.json"
    for question in ("Say hello.", "And goodbye."):
        arguments = [question, "--url", demo_server.url, "--max-tokens", "8", "--history", str(file), "--json"]
        assert run(chat_program.app, "chat", arguments) == 0
        turn = json.loads(capsys.readouterr().out.splitlines()[-1])["turns"][0]
        assert turn["completion_tokens"] <= 8
    assert [message["role"] for message in json.loads(file.read_text())] == ["user", "assistant"] * 2
    assert turn["cached_tokens"] > 0


def test_an_edit_takes_its_prediction_and_keeps_its_text(backend: CountingEndpoint) -> None:
    texts = []
    for speculate in (True, False):
        with sgl_spec.options(program="code", speculate=speculate):
            state = code.edit.run("x = 1\ny = 2\n", "Rename x to z.", max_tokens=16, backend=backend)
            texts.append(text_of(check(state), "code"))
    assert texts[0] == texts[1]


def test_explain_keeps_its_schema_or_says_that_it_is_cut(backend: CountingEndpoint) -> None:
    text = text_of(check(code.explain.run("x = 1", structured=True, max_tokens=16, backend=backend)), "explanation")
    assert text.lstrip().startswith("{")


def test_summary_by_forks_and_a_verdict(backend: CountingEndpoint) -> None:
    text = "The river rose by two metres in May. The town moved its market to the hill.\n" * 4
    assert backend.count_tokens([text])[0] > 60
    result = summarization.summarize(text, backend, backend.count_tokens, chunk_tokens=60, max_tokens=12)
    assert result["chunks"] >= 2
    assert result["summary"]
    assert result["quality"] in (summarization.GOOD, summarization.POOR)


def test_a_refused_request_is_an_error_with_its_reason(backend: CountingEndpoint) -> None:
    console = Console(quiet=True)
    talk = chat_program.Conversation(backend, "", [], max_tokens=10_000_000, temperature=0.0)
    with pytest.raises(ServerError):
        talk.ask("Hi", console)
    assert talk.turns == []
