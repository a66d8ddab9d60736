"""OpenAI's `prediction`: its forms, the way to our options, and the counts in usage."""

import asyncio
import json
from typing import Any

import pytest

from sgl_spec.errors import ConfigError

chat_prediction = pytest.importorskip("sgl_spec.sglang_plugin.chat_prediction")


@pytest.mark.parametrize("content", ["a b", [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]])
def test_the_text_of_both_forms(content: Any) -> None:
    assert chat_prediction.predicted_text({"type": "content", "content": content}) == "a b"


@pytest.mark.parametrize(
    "prediction",
    [
        "text",
        [],
        {"content": "text"},
        {"type": "other", "content": "text"},
        {"type": "content"},
        {"type": "content", "content": 3},
        {"type": "content", "content": [{"type": "image", "text": "a"}]},
        {"type": "content", "content": [{"type": "text", "text": None}]},
    ],
)
def test_other_forms_are_refused_by_name(prediction: Any) -> None:
    with pytest.raises(ConfigError, match="prediction"):
        chat_prediction.predicted_text(prediction)


def test_the_prediction_joins_our_options_and_leaves_the_callers_alone() -> None:
    given = {"other": 1, "sgl_spec": {"program": "code"}}
    assert chat_prediction.with_prediction(given, "text") == {
        "other": 1,
        "sgl_spec": {"program": "code", "prediction": "text"},
    }
    assert given == {"other": 1, "sgl_spec": {"program": "code"}}


@pytest.mark.parametrize(
    ("custom", "text", "says"),
    [
        (None, "x" * 1_000_001, "1000001 characters; send at most 1000000"),
        ({"sgl_spec": {"prediction": "y"}}, "x", "given twice"),
        ({"sgl_spec": {"nonsense": 1}}, "x", "has no option 'nonsense'"),
        ({"sgl_spec": 7}, "x", "must be an object"),
    ],
)
def test_what_cannot_be_honoured_is_one_sentence(custom: Any, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        chat_prediction.with_prediction(custom, text)


class Manager:
    """A tokenizer manager with two choices, of which the second reports once."""

    colour = "blue"

    async def generate_request(self, obj: Any, request: Any = None) -> Any:
        for index, accepted in ((0, 0), (1, 1), (0, 4)):
            counts = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": 9 - accepted}
            yield {"index": index, "meta_info": {"sgl_spec": {**counts, "warnings": ["Not used."]}}}
        yield {"index": 0, "meta_info": {}}


def test_counts_are_the_last_of_each_choice_and_their_sum() -> None:
    watched = chat_prediction.Watched(Manager())

    async def read() -> int:
        return len([answer async for answer in watched.generate_request(None)])

    assert asyncio.run(read()) == 4
    assert watched.counts() == {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 13}
    assert watched.colour == "blue"


def test_only_the_usage_event_of_a_stream_changes() -> None:
    watched = chat_prediction.Watched(Manager())
    text = 'data: {"choices":[{"delta":{"content":"🙂 \\"usage\\":{"}}],"usage":null}\n\n'
    usage = 'data: {"id":"é","choices":[],"usage":{"completion_tokens":3,"completion_tokens_details":null}}\n\n'

    async def read() -> list[str]:
        async def events() -> Any:
            for event in (text, usage, "data: [DONE]\n\n"):
                yield event

        async for _ in watched.generate_request(None):
            pass
        return [event async for event in chat_prediction.add_to_stream(events(), watched)]

    first, second, third = asyncio.run(read())
    assert (first, third) == (text, "data: [DONE]\n\n")
    assert json.loads(second.removeprefix("data: "))["usage"] == {
        "completion_tokens": 3,
        "completion_tokens_details": {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 13},
    }
    assert json.loads(second.removeprefix("data: "))["sgl_spec"] == {"warnings": ["Not used."]}
    assert "é" in second


def test_an_answer_without_a_report_is_left_as_it_is() -> None:
    answer = {"usage": {"completion_tokens": 3}}
    chat_prediction.add_report(answer, chat_prediction.Watched(Manager()))
    assert answer == {"usage": {"completion_tokens": 3}}
