"""The programs against a server in this process."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from rich.console import Console

import sgl_spec
from programs import chat as chat_program
from programs import code, summarization
from programs.batch import chat_row, code_row, summarization_row
from programs.chunks import chunks
from programs.command import run
from programs.history import check_messages, load, save
from programs.origin import Origins, tokens_by_source
from programs.sandbox import judge
from programs.state import pieces
from sgl_spec.batch.endpoint import CountingEndpoint
from sgl_spec.batch.work import RowError
from sgl_spec.errors import ConfigError, SpecError
from sgl_spec.server_error import ServerError
from tests.unit.fake_engine import FakeEngine, answer_to, meta_of


def words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


@pytest.fixture
def engine() -> Any:
    with FakeEngine() as running:
        yield running


@pytest.fixture
def backend(engine: FakeEngine) -> CountingEndpoint:
    return CountingEndpoint(engine.url)


# Chat


def test_chat_keeps_turns_and_options(backend: CountingEndpoint, engine: FakeEngine, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    talk = chat_program.Conversation(backend, "Be brief.", [], file, max_tokens=9, temperature=0.0)
    with sgl_spec.options(program="chat", num_speculative_tokens=2):
        first = talk.ask("One?", Console(quiet=True))
        second = talk.ask("Two?", Console(quiet=True))
    prompt = "SYSTEM:Be brief.\nUSER:One?\nASSISTANT:"
    assert first["answer"] == answer_to(prompt)
    assert second["answer"] == answer_to(f"{prompt}{first['answer']}\nUSER:Two?\nASSISTANT:")
    assert first["tokens_by_source"] == {"target": 3, "model": 3}
    sent = engine.bodies[-1]["sampling_params"]
    assert sent["custom_params"] == {"sgl_spec": {"program": "chat", "num_speculative_tokens": 2}}
    assert sent["max_new_tokens"] == 9
    assert load(file) == ("Be brief.", talk.turns)
    assert backend.usage.requests == 2


def test_pieces_join_to_the_whole_text_and_raise_the_error(backend: CountingEndpoint, engine: FakeEngine) -> None:
    state = chat_program.chat.run("Hi", stream=True, backend=backend)
    assert "".join(text for text, _ in pieces(state, "answer")) == state["answer"]
    engine.fail = {"Hi": [400, 1]}
    state = chat_program.chat.run("Hi", stream=True, backend=backend)
    with pytest.raises(ServerError, match="told to fail on Hi"):
        list(pieces(state, "answer"))


def test_pieces_wait_for_a_program_that_has_not_come_to_its_variable(backend: CountingEndpoint) -> None:
    go = threading.Event()

    @sgl.function
    def late(s: Any, ask: bool) -> None:
        go.wait(10.0)
        if ask:
            s += sgl.gen("answer", max_tokens=4)

    for ask in (True, False):
        go.clear()
        state = late.run(ask, stream=True, backend=backend)
        threading.Timer(0.2, go.set).start()
        assert bool("".join(text for text, _ in pieces(state, "answer"))) == ask


def test_commands_of_the_conversation(backend: CountingEndpoint) -> None:
    talk = chat_program.Conversation(backend, "", [], None, max_tokens=9, temperature=0.0)
    console = Console(record=True, width=200)
    done = chat_program.converse(talk, iter(["a", "b", "/undo", "", "/nope", "/quit", "c"]), console)
    assert [turn["question"] for turn in done] == ["a", "b"]
    assert [turn["content"] for turn in talk.turns if turn["role"] == "user"] == ["a"]
    assert "There is no command /nope" in console.export_text()
    chat_program.converse(talk, iter(["/new"]), console)
    assert talk.turns == []


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ("hi", "must be a list of messages"),
        ([{"role": "user"}], "message 0, needs a role"),
        ([{"role": "assistant", "content": "x"}], "must take turns"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "y"}], "only the first may be one"),
    ],
)
def test_wrong_messages_are_refused(messages: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_messages(messages, "messages")


def test_history_refuses_what_is_no_conversation(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    assert load(file) == ("", [])
    save(file, "", [{"role": "user", "content": "x"}])
    with pytest.raises(ConfigError, match="unanswered message"):
        load(file)
    file.write_text("no json")
    with pytest.raises(ConfigError, match="is not JSON"):
        load(file)


def test_chat_command_ends_with_json_or_one_sentence(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(chat_program.app, "chat", ["Hi", "--url", engine.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["turns"][0]["answer"].startswith("answer-")
    assert run(chat_program.app, "chat", ["Hi", "--url", engine.url, "--model-path", "m"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert run(chat_program.app, "chat", ["Hi", "--url", "http://127.0.0.1:9"]) == 1
    assert "No server answers at http://127.0.0.1:9" in capsys.readouterr().err
    assert run(chat_program.app, "chat", ["Hi", "--engine", "vllm", "--url", "http://x"]) == 2
    assert "engine=vllm needs --model-path" in capsys.readouterr().err


def test_origins_follow_reports_and_never_guess() -> None:
    def report(tokens: int, **accepted: int) -> dict[str, Any]:
        sources = {source: {"proposed": 9, "accepted": count} for source, count in accepted.items()}
        return {"completion_tokens": tokens, "sgl_spec": {"accepted_by_source": sources}}

    origins = Origins()
    assert origins.of(report(1)) == "target"
    assert origins.of(report(4, model=2, cache=1)) == "model"
    assert origins.of(report(6, model=2, cache=2)) == "cache"
    assert origins.of(report(7, model=2, cache=2)) == "target"
    silent = Origins()
    assert silent.of({"completion_tokens": 5}) == "target"
    assert silent.of(report(9, model=7)) == "target"
    assert tokens_by_source(report(9, model=7)) == {"target": 2, "model": 7}
    assert tokens_by_source({}) == {}


# Code


def test_sandbox_counts_tests_and_survives_bad_candidates() -> None:
    tests = "def test_two():\n    assert double(2) == 4\n\ndef test_three():\n    assert double(3) == 6\n"
    good = judge("def double(x):\n    return 2 * x\n", tests)
    assert (good.passed, good.tests, good.good, good.problem) == (2, 2, True, None)
    half = judge("def double(x):\n    return x * x\n", tests)
    assert (half.passed, half.tests, half.good) == (1, 2, False)
    assert "test_three" in (half.problem or "")
    assert "SyntaxError" in (judge("def double(x:", tests).problem or "")
    assert "SystemExit" in (judge("raise SystemExit", tests).problem or "")
    assert "no function test_" in (judge("x = 1", "y = 2").problem or "")


@pytest.mark.parametrize(
    "body",
    [
        "import os; os._exit(0)",
        "while True: pass",
        "return bytes(1 << 40)",
        "import os; os.fork()",
        "open('big', 'wb').write(bytes(64 << 20))",
    ],
)
def test_sandbox_limits_hold(body: str) -> None:
    candidate = "def double(x):\n" + "".join(f"    {part}\n" for part in body.split("; "))
    verdict = judge(candidate, "def test_it():\n    assert double(2) == 4\n", seconds=1)
    assert (verdict.passed, verdict.tests, verdict.good) == (0, 1, False)
    assert verdict.problem


def test_complete_picks_the_candidate_that_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([" x * x\n", " 2 * x\n", " x\n"])
    tests = tmp_path / "test_it.py"
    tests.write_text("def test_it():\n    assert double(3) == 6\n")
    with FakeEngine(reply=lambda prompt: next(answers)) as engine:
        arguments = ["complete", "def double(x): return", "--url", engine.url, "-n", "3", "--json"]
        assert run(code.app, "code", [*arguments, "--test", str(tests)]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["code"] == "def double(x): return 2 * x\n"
        assert sorted(verdict["passed"] for verdict in found["verdicts"]) == [0, 0, 1]
        assert run(code.app, "code", arguments) == 2
        assert "needs --test" in capsys.readouterr().err


def test_edit_predicts_the_old_file_and_writes_only_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "app.py"
    file.write_bytes(b"a = 1\r\nb = 2\r\n")
    file.chmod(0o750)
    with FakeEngine(reply=lambda prompt: "a = 1\nb = 3\n") as engine:
        arguments = ["edit", str(file), "make b three", "--url", engine.url, "--json"]
        assert run(code.app, "code", arguments) == 0
        assert file.read_bytes() == b"a = 1\r\nb = 2\r\n"
        assert run(code.app, "code", [*arguments, "--write"]) == 0
        options = engine.bodies[-1]["sampling_params"]["custom_params"]["sgl_spec"]
    assert options == {"program": "code", "prediction": "a = 1\nb = 2\n"}
    assert "-b = 2\n+b = 3\n" in json.loads(capsys.readouterr().out.splitlines()[-1])["diff"]
    assert file.read_bytes() == b"a = 1\r\nb = 3\r\n"
    assert file.stat().st_mode & 0o777 == 0o750


def test_explain_asks_for_the_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "app.py"
    file.write_text("a = 1\n")
    with FakeEngine(reply=lambda prompt: '{"summary": "sets a", "parts": []}') as engine:
        assert run(code.app, "code", ["explain", str(file), "--url", engine.url, "--json"]) == 0
        assert json.loads(engine.bodies[-1]["sampling_params"]["json_schema"]) == code.EXPLANATION
    assert json.loads(capsys.readouterr().out) == {"summary": "sets a", "parts": []}
    with pytest.raises(SpecError, match="raise --max-tokens"):
        code.document('{"summary": "se')


# Summarization


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_chunks_join_to_the_text_and_keep_the_bound(most: int) -> None:
    text = "One two three. Four five!\n\nSix seven eight nine ten eleven twelve thirteen.\n" * 3 + "end"
    parts = chunks(text, most, words)
    assert "".join(parts) == text
    assert max(words(parts)) <= most
    assert chunks(" \n", most, words) == []


def test_chunks_cut_words_that_are_too_long() -> None:
    def letters(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    parts = chunks("abcdefghij klm", 4, letters)
    assert "".join(parts) == "abcdefghij klm"
    assert max(letters(parts)) <= 4


def test_summary_maps_in_forks_and_reduces(backend: CountingEndpoint, engine: FakeEngine) -> None:
    text = "".join(f"Sentence number {i} says something here.\n" for i in range(40))
    with sgl_spec.options(program="summarization"):
        result = summarization.summarize(text, backend, backend.count_tokens, chunk_tokens=60)
    assert result["chunks"] == 4
    assert result["levels"] == 1
    assert result["quality"] in (summarization.GOOD, summarization.POOR)
    assert result["attempts"] == (1 if result["quality"] == summarization.GOOD else 2)
    notes = [body for body in engine.bodies if "short notes" in str(body.get("text")) and body["text"].endswith(":")]
    assert len(notes) == 4
    options = {json.dumps(body["sampling_params"].get("custom_params")) for body in notes}
    assert options == {'{"sgl_spec": {"program": "summarization"}}'}


def test_summary_reads_files_folders_and_refuses_the_rest(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("b")
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "c.bin").write_bytes(b"\xff")
    names = [Path(name).name for name, _ in summarization.documents([str(tmp_path), str(tmp_path / "a.txt")])]
    assert names == ["a.txt", "b.md", "a.txt"]
    with pytest.raises(ConfigError, match="is no UTF-8 text"):
        summarization.documents([str(tmp_path / "c.bin")])
    with pytest.raises(ConfigError, match="cannot be read"):
        summarization.documents([str(tmp_path / "absent")])


def test_a_failing_fork_raises_its_own_error(backend: CountingEndpoint, engine: FakeEngine) -> None:
    engine.fail = {"third": [400, 9]}
    with pytest.raises(ServerError, match="told to fail on third"):
        summarization.take_notes.run(["first", "second", "third"], backend=backend)


# Rows


def test_rows_of_the_programs(backend: CountingEndpoint) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    answer = {"answer": answer_to("SYSTEM:s\nUSER:q\nASSISTANT:")}
    assert chat_row({"messages": messages}, backend) == answer
    assert chat_row({"question": "q", "system": "s", "id": 1}, backend) == answer
    assert code_row({"code": "x ="}, backend)["code"].startswith("x =answer-")
    assert "+answer-" in code_row({"code": "x = 1\n", "instruction": "change"}, backend)["diff"]
    assert code_row({"code": "x", "task": "explain"}, backend)["explanation"].startswith("answer-")
    assert summarization_row({"text": "A short text."}, backend)["chunks"] == 1


@pytest.mark.parametrize(
    ("row", "values", "sentence"),
    [
        (chat_row, {}, 'either "question" or "messages"'),
        (chat_row, {"question": "q", "temprature": 1}, "did you mean 'temperature'"),
        (chat_row, {"question": "q", "max_tokens": 0}, "max_tokens=0 must be"),
        (chat_row, {"question": "q", "temperature": "hot"}, "temperature='hot' must be"),
        (code_row, {"code": "x", "task": "run"}, "task='run' is unknown"),
        (summarization_row, {"text": "x", "chunk_tokens": 1}, "chunk_tokens=1 must be"),
    ],
)
def test_wrong_rows_are_refused(row: Any, values: dict[str, Any], sentence: str, backend: CountingEndpoint) -> None:
    with pytest.raises(RowError, match=sentence):
        row(values, backend)


def test_an_aborted_request_is_an_error(engine: FakeEngine, backend: CountingEndpoint) -> None:
    meta = meta_of("x", "y") | {"finish_reason": {"type": "abort", "message": "too long", "status_code": 400}}
    with pytest.raises(ServerError, match="aborted the request: too long"):
        backend._count(meta)
