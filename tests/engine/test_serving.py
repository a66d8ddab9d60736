"""The server as its clients use it: the OpenAI client, curl, streams, predictions, counters, the page's figures."""

import json
import re
import shutil
import subprocess
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.engine

ASK = [{"role": "user", "content": "Write one short sentence about the sea."}]
MANY_BYTES = "你好，世界 🙂🎉 naïve café 東京 👩‍👩‍👧 été"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(demo_server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="none", timeout=300, max_retries=0)


def chat(client: openai.OpenAI, messages: Any = ASK, speculate: bool = True, **given: Any) -> Any:
    options = {"custom_params": {"sgl_spec": {"speculate": speculate, "program": "serving"}}}
    body = {"temperature": 0, "max_tokens": 24, "model": "default", "extra_body": options, **given}
    return client.chat.completions.create(messages=messages, **body)


def prediction(text: str) -> dict[str, str]:
    return {"type": "content", "content": text}


def test_chat_says_the_same_with_and_without_guesses(client: openai.OpenAI) -> None:
    texts = {chat(client, speculate=speculate).choices[0].message.content for speculate in (True, False)}
    assert len(texts) == 1
    assert texts != {""}


def test_completions_and_their_stream(client: openai.OpenAI) -> None:
    body: Any = {"model": "default", "prompt": "1, 2, 3, 4,", "temperature": 0, "max_tokens": 24}
    whole = client.completions.create(**body)
    assert whole.choices[0].text.startswith(" 5, 6, 7")
    parts = [chunk.choices[0].text for chunk in client.completions.create(**body, stream=True)]
    assert "".join(parts) == whole.choices[0].text


def test_no_setting_of_ours_is_called_an_old_one_of_sglangs(demo_server: Any) -> None:
    assert "please use SGLANG_SPEC" not in demo_server.runtime.server.log_tail(100_000)


def test_three_choices(client: openai.OpenAI) -> None:
    answer = chat(client, n=3)
    assert len({choice.message.content for choice in answer.choices}) == 1
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    sampled = chat(client, n=3, temperature=1.0)
    assert len({choice.message.content for choice in sampled.choices}) > 1


def test_logprobs_are_those_of_plain_decoding(client: openai.OpenAI) -> None:
    plain, guessed = (
        chat(client, logprobs=True, top_logprobs=2, speculate=speculate).choices[0] for speculate in (False, True)
    )
    assert [token.token for token in guessed.logprobs.content] == [token.token for token in plain.logprobs.content]
    for ours, theirs in zip(guessed.logprobs.content, plain.logprobs.content, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert len(ours.top_logprobs) == 2


def test_a_json_schema_is_kept(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    ask = [{"role": "user", "content": "Give Ada's name and age as JSON."}]
    texts = [
        chat(client, ask, response_format=form, max_tokens=48, speculate=speculate).choices[0].message.content
        for speculate in (True, False)
    ]
    assert texts[0] == texts[1]
    assert set(json.loads(texts[0])) == {"name", "age"}


def test_a_stop_string_ends_where_it_would_without_guesses(client: openai.OpenAI) -> None:
    ask = [{"role": "user", "content": "Count from 1 to 20, separated by commas."}]
    answers = [chat(client, ask, stop=["7"], speculate=speculate).choices[0] for speculate in (True, False)]
    assert answers[0].message.content == answers[1].message.content
    assert "7" not in answers[0].message.content
    assert answers[0].finish_reason == answers[1].finish_reason


@pytest.mark.parametrize("regex", [None, MANY_BYTES])
def test_a_stream_is_the_final_text_with_eight_guesses(self_server: Any, regex: str | None) -> None:
    """The draft is the target: chunks of nine tokens end in the middle of characters."""
    eight = openai.OpenAI(base_url=f"{self_server.url}/v1", api_key="none", timeout=300)
    given: Any = {"max_tokens": 64, "extra_body": {"regex": regex} if regex else {}}
    whole = chat(eight, **given)
    chunks = list(chat(eight, **given, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text == regex or regex is None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_right_prediction_is_accepted_and_changes_nothing(client: openai.OpenAI) -> None:
    plain = chat(client, speculate=False)
    text = plain.choices[0].message.content
    answer = chat(client, prediction=prediction(text))
    assert answer.choices[0].message.content == text
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens >= answer.usage.completion_tokens - 2
    assert details.rejected_prediction_tokens <= 2


def test_a_wrong_prediction_is_rejected_and_changes_nothing(client: openai.OpenAI) -> None:
    wrong = "Entirely unrelated words about tax law and jurisdictions."
    answer = chat(client, prediction=prediction(wrong))
    assert answer.choices[0].message.content == chat(client, speculate=False).choices[0].message.content
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens <= 2
    assert details.rejected_prediction_tokens >= 6


def test_the_counts_of_a_prediction_come_with_a_streams_usage(client: openai.OpenAI) -> None:
    text = chat(client, speculate=False).choices[0].message.content
    given: Any = {"prediction": prediction(text), "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = chat(client, **given)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert last.usage.completion_tokens_details.accepted_prediction_tokens >= last.usage.completion_tokens - 2


def test_each_of_three_choices_counts_its_prediction(client: openai.OpenAI) -> None:
    one, three = (chat(client, n=n, prediction=prediction("The sea is")).usage for n in (1, 3))
    counts = [
        details.accepted_prediction_tokens + details.rejected_prediction_tokens
        for details in (one.completion_tokens_details, three.completion_tokens_details)
    ]
    assert counts == [counts[0], 3 * counts[0]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prediction": "text"}, 'send {"type": "content"'),
        ({"prediction": prediction("x" * 100_000_000)}, "send at most 1000000"),
        ({"extra_body": {"custom_params": {"sgl_spec": {"speculat": True}}}}, "has no option"),
        ({"extra_body": {"custom_params": {"sgl_spec": {"prediction": [10**9]}}}}, "the target has"),
    ],
)
def test_what_cannot_be_honoured_is_a_400_with_a_sentence(client: openai.OpenAI, given: Any, says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=re.escape(says)):
        chat(client, **given)
    assert chat(client, max_tokens=2).usage.completion_tokens == 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl(demo_server: Any) -> None:
    body = {"messages": ASK, "temperature": 0, "max_tokens": 8, "prediction": prediction("The sea")}
    command = ["curl", "-sS", f"{demo_server.url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    done = subprocess.run([*command, "-d", json.dumps(body)], capture_output=True, check=True, timeout=300)
    answer = json.loads(done.stdout)
    assert answer["choices"][0]["message"]["content"]
    assert set(answer["usage"]["completion_tokens_details"]) >= {"accepted_prediction_tokens"}


def test_every_chunk_of_a_stream_says_where_its_tokens_came_from(demo_server: Any) -> None:
    body = {
        "text": "Repeat this sentence: This is a test. This is a test. This is",
        "sampling_params": {"temperature": 0, "max_new_tokens": 24},
        "stream": True,
    }
    reports, meta = [], {}
    with httpx.stream("POST", f"{demo_server.url}/generate", json=body, timeout=300) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                meta = json.loads(line.removeprefix("data: "))["meta_info"]
                reports.append(meta["sgl_spec"])
    accepted = [report["num_accepted_draft_tokens"] for report in reports]
    assert accepted == sorted(accepted)
    rounds = reports[-1]["num_spec_steps"] + reports[-1]["num_plain_steps"]
    assert meta["completion_tokens"] == 1 + rounds + accepted[-1]


def test_page_figures_and_counters_equal_the_statistics(demo_server: Any, client: openai.OpenAI) -> None:
    chat(client)
    stats = demo_server.runtime.stats()
    page = httpx.get(f"{demo_server.url}/sgl-spec/")
    assert page.headers["content-type"].startswith("text/html")
    report = httpx.get(f"{demo_server.url}/sgl-spec/stats").json()["schedulers"][0]
    assert report["stats"] == stats
    slowest = [request["seconds"] for request in report["slowest_requests"]]
    assert slowest == sorted(slowest, reverse=True)
    assert slowest[-1] > 0
    lines = httpx.get(f"{demo_server.url}/metrics").text.splitlines()
    counted: dict[str, float] = {}
    for line in lines:
        found = re.match(r"(sgl_spec_\w+?)_total\{(.*)\} (\S+)$", line)
        if found:
            counted[found[1]] = counted.get(found[1], 0) + float(found[3])
    assert counted == {
        "sgl_spec_proposed_tokens": stats["num_draft_tokens"],
        "sgl_spec_accepted_tokens": stats["num_accepted_draft_tokens"],
        "sgl_spec_rounds": stats["rounds"],
        "sgl_spec_requests": stats["requests"],
    }
