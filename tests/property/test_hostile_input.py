"""Whatever comes in, the way out is a value or one sentence: options, predictions, YAML files, rows of a batch."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sgl_spec.batch.pool import Pool
from sgl_spec.batch.results import Results
from sgl_spec.batch.rows import digests, read_rows
from sgl_spec.batch.runner import RowRunner
from sgl_spec.batch.work import find_work
from sgl_spec.config import MAX_DRAFTS, MAX_NAME, RequestOptions, SpecConfig
from sgl_spec.errors import ConfigError
from sgl_spec.serve_cli import parse_options, read_yaml
from tests.unit.fake_engine import FakeEngine

MOST_SAID = 600  # characters of a sentence
relaxed = settings(max_examples=100, deadline=None, derandomize=True)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(2**63), 2**64])
    | st.floats()
    | st.text(max_size=200)
    | st.sampled_from(["{{7*7}}", "{%raw%}", "../../etc/passwd", "__import__('os')", "\ud800", "\x00", "!!python/none"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
DEEP: Any = []
for _ in range(3000):
    DEEP = [DEEP]


def named(model: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Dictionaries of a model's own names, and sometimes another, with any values."""
    own = st.sampled_from(sorted(model.model_fields))
    return st.dictionaries(own | own | own | st.text(max_size=12), values, max_size=4)


def check_sentence(error: BaseException) -> None:
    said = str(error)
    assert 0 < len(said) <= MOST_SAID
    assert "\n" not in said


@relaxed
@given(named(RequestOptions) | values)
@example({"prediction": "x" * 1_000_001})
@example({"prediction": [0] * 262_145})
def test_request_options(given_options: Any) -> None:
    try:
        options = RequestOptions.parse(given_options)
    except ConfigError as error:
        check_sentence(error)
        return
    assert options.num_speculative_tokens is None or 0 <= options.num_speculative_tokens <= MAX_DRAFTS
    assert len(options.program) <= MAX_NAME
    assert len(options.namespace) <= MAX_NAME
    assert RequestOptions.parse(options.model_dump()) == options


@relaxed
@given(named(SpecConfig))
def test_server_settings(given_settings: dict[str, Any]) -> None:
    try:
        config = SpecConfig.parse({"model_path": "target", **given_settings})
    except ConfigError as error:
        check_sentence(error)
        return
    assert 0 <= config.num_speculative_tokens <= config.k_max <= MAX_DRAFTS


@relaxed
@given(values, named(RequestOptions) | values)
def test_the_prediction_of_a_chat_request(prediction: Any, options: Any) -> None:
    chat = pytest.importorskip("sgl_spec.sglang_plugin.chat_prediction")
    try:
        text = chat.predicted_text(prediction)
        custom = chat.with_prediction({"sgl_spec": options}, text)
    except ConfigError as error:
        check_sentence(error)
        return
    assert custom["sgl_spec"]["prediction"] == text


@relaxed
@given(named(RequestOptions) | values, st.integers(1, 1000))
@example({"prediction": [2**300]}, 5)
def test_admission(custom_params: Any, vocabulary: int) -> None:
    admission = pytest.importorskip("sgl_spec.sglang_plugin.admission")
    for custom in (custom_params, {"sgl_spec": custom_params}):
        try:
            admission.check_options(custom, vocabulary)
        except ConfigError as error:
            check_sentence(error)


@pytest.mark.parametrize(
    "value", [DEEP, {"a": DEEP}, 10**5000, [[10**5000]]], ids=["deep", "inner", "long", "in a list"]
)
@pytest.mark.parametrize("key", ["prediction", "program", "num_speculative_tokens", "controller", "draft_confidence"])
def test_values_that_python_cannot_write_out(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as said:
        RequestOptions.parse({key: value})
    check_sentence(said.value)
    assert key in str(said.value)


@relaxed
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"a: 2001-13-45")
@example(b"a: " + b"1" * 5000)
@example(b"a: !!int ''")
@example(b"a: !!bool x")
@example(b"a: !!timestamp x")
@example(b"a: !!python/object/apply:os.system [exit 3]")
@example(b"? [1, 2]\n: 3")
@example(b"[" * 5000)
@example(b"{a: &a [*a]}")
@example(b"0x" + b"f" * 9000 + b": 1")
def test_yaml_files(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "server.yaml"
        file.write_bytes(content)
        try:
            assert isinstance(read_yaml(file), dict)
        except ConfigError as error:
            check_sentence(error)


def test_aliases_of_aliases_are_said_in_few_words() -> None:
    names = "abcdefghijklmnopqrstuvwx"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join(['*' + old] * 9)}]" for old, new in pairwise(names)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bomb.yaml"
        file.write_text("\n".join(lines))
        loaded = read_yaml(file)
    with pytest.raises(ConfigError) as said:
        SpecConfig.parse({"model_path": "t", "controller": loaded["x"]})
    check_sentence(said.value)


@relaxed
@given(
    st.lists(st.sampled_from(["--seed", "--port", "--controller", "--prediction"]) | st.text(max_size=20), max_size=6)
)
@example(["--seed", "2001-13-45"])
@example(["--seed={"])
@example(["--seed=" + "1" * 5000])
@example(["--probe-share=!!int"])
def test_words_of_the_command_line(words: list[str]) -> None:
    try:
        parse_options(words)
    except ConfigError as error:
        check_sentence(error)


lines = (
    st.dictionaries(
        st.sampled_from(["id", "custom_id", "question", "messages", "sgl_spec", "max_tokens", "url", "body"]), values
    ).map(lambda row: json.dumps(row).encode())
    | values.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=60).map(lambda line: line.replace(b"\n", b""))
)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    from sgl_spec.batch.endpoint import CountingEndpoint

    with FakeEngine(reply=lambda _: "answer") as engine:
        yield CountingEndpoint(engine.url)


def echo(values: dict[str, Any], server: Any) -> Any:
    """A program that gives back what it gets."""
    return values


@settings(relaxed, max_examples=40)
@given(st.lists(lines, max_size=6), st.sampled_from(["chat", "openai", f"{__name__}:echo"]))
@example([b"1" * 5000, b"[" * 100_000, b'{"id": NaN}', b'{"question": "\\ud800", "id": "\\udfff"}'], "chat")
@example([b'{"a": NaN}', b'{"a": "\\ud800"}', b'{"a": 1e999}'], f"{__name__}:echo")
def test_every_line_of_a_batch_becomes_one_record(server: Any, content: list[bytes], program: str) -> None:
    run = RowRunner(find_work(program), Pool([server]), retries=0)
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        source.write_bytes(b"\n".join(content))
        known = digests(source)
        with Results(out, known) as results:
            for row in read_rows(source):
                results.append(run(row).record)
        records = [json.loads(line, parse_constant=pytest.fail) for line in out.read_bytes().splitlines()]
        assert [record["index"] for record in records] == list(range(len(known)))
        with Results(out, known) as results:
            assert len(results.places) == len(known)
