"""Neighbours of the public reports: other options, and other mixes of options, of the same kinds.

Each is asked twice of one server, without guesses and with K of them, and must be answered alike: tokens, text,
reason to finish, logprobs.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sgl_spec.models import demo_target
from tests.engine.conftest import PROMPTS, Server, start
from tests.engine.test_cases import SCHEMA, fixed
from tests.engine.test_finish import PLAIN, REPEAT, SAY_OK

pytestmark = [pytest.mark.engine, pytest.mark.long]
LENGTHS = [1, 4, 8]
LOGPROBS = ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
STORY, DIGITS, ADA, ROBOT = (PROMPTS[i] for i in (2, 3, 16, 19))
ENDS = [
    (REPEAT, {"stop": [" test"]}),
    (REPEAT, {"stop": ["s", "This is"], "no_stop_trim": True}),
    (REPEAT, {"stop": ["\n\n", "is a test. T"]}),
    (REPEAT, {"stop_token_ids": [30]}),
    (STORY, {"stop_regex": "[.,] "}),
    (REPEAT, {"stop": [" test"], "min_new_tokens": 12, "ignore_eos": True}),
    (SAY_OK, {"skip_special_tokens": False}),
    (SAY_OK, {"ignore_eos": True, "skip_special_tokens": False, "stop": ["<|im_end|>"]}),
    (SAY_OK, {"ignore_eos": True, "stop_token_ids": [2]}),
    (STORY, {"n": 2, "stop": [" the"]}),
]
MIXES = [
    (DIGITS, {"regex": "[0-9]{2}, [0-9]{2}, [0-9]{2}"}),
    (DIGITS, {"regex": "[0-9, ]{4,30}", "stop": ["8"]}),
    (DIGITS, {"regex": "[0-9, ]{4,30}", "stop": [", "], "min_new_tokens": 8}),
    (DIGITS, {"regex": "[0-9, ]{4,30}", "frequency_penalty": 1.0}),
    (ROBOT, {"regex": "[a-z ]{5,60}", "temperature": 1.0, "sampling_seed": 3}),
    (STORY, {"ebnf": 'root ::= "a " ("b" | "c")+ "d"'}),
    (ADA, {"json_schema": SCHEMA, "max_new_tokens": 40}),
    (ADA, {"json_schema": SCHEMA, "max_new_tokens": 4}),
    (STORY, {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5, "min_new_tokens": 20}),
    (ROBOT, {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.02, "sampling_seed": 11}),
    (ROBOT, {"temperature": 1.2, "repetition_penalty": 1.3, "sampling_seed": 12, "logit_bias": {"260": -100.0}}),
]
ASKED = [
    {},
    {"top_logprobs_num": 2},
    {"top_logprobs_num": 2, "logprob_start_len": 0},
    {"logprob_start_len": 0},
    {"token_ids_logprob": [2, 260]},
    {"return_text_in_logprobs": True, "top_logprobs_num": 1},
]


@pytest.fixture(params=["self_server", "bad_server"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)


def post(server: Server, body: dict[str, Any], path: str = "/generate") -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=300)


def body_of(text: Any, given: dict[str, Any], params: dict[str, Any], **more: Any) -> dict[str, Any]:
    sampling = {"temperature": 0.0, "max_new_tokens": 24, "custom_params": {"sgl_spec": given}, **params}
    return {"text": text, "sampling_params": sampling, **more}


def alike(server: Server, text: Any, params: dict[str, Any], k: int, **more: Any) -> list[dict[str, Any]]:
    """Ask without guesses and with `k`; returns the answers with guesses once they agree."""
    plain, guess = (post(server, body_of(text, given, params, **more)) for given in (PLAIN, fixed(k)))
    assert plain.status_code == guess.status_code == httpx.codes.OK, (plain.text, guess.text)
    pairs = [answer if isinstance(answer, list) else [answer] for answer in (plain.json(), guess.json())]
    for one, other in zip(*pairs, strict=True):
        assert one["output_ids"] == other["output_ids"]
        assert one["text"] == other["text"]
        for key in ("finish_reason", "completion_tokens", "prompt_tokens"):
            assert one["meta_info"][key] == other["meta_info"][key]
        for key in LOGPROBS:
            close(one["meta_info"].get(key), other["meta_info"].get(key))
    return pairs[1]


def close(one: Any, other: Any) -> None:
    """Equal in shape, ids and texts; numbers equal up to rounding."""
    if isinstance(one, list):
        assert isinstance(other, list)
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            close(a, b)
    elif isinstance(one, float):
        assert other == pytest.approx(one, abs=1e-3)
    else:
        assert one == other


@pytest.mark.parametrize("k", LENGTHS)
def test_ends(server: Server, k: int) -> None:
    for text, params in ENDS:
        alike(server, text, params, k)


@pytest.mark.parametrize("k", LENGTHS)
def test_mixed_options(server: Server, k: int) -> None:
    for text, params in MIXES:
        alike(server, text, params, k)


@pytest.mark.parametrize("k", LENGTHS)
def test_logprobs(server: Server, k: int) -> None:
    for asked in ASKED:
        for params in ({}, {"stop": [" time"]}, {"temperature": 0.7, "sampling_seed": 4}, {"n": 2}):
            for answer in alike(server, STORY, {"max_new_tokens": 12, **params}, k, return_logprob=True, **asked):
                meta = answer["meta_info"]
                assert len(meta["output_token_logprobs"]) == meta["completion_tokens"] == len(answer["output_ids"])
    alike(server, DIGITS, {"regex": "[0-9, ]{4,9}"}, k, return_logprob=True, top_logprobs_num=1)


def test_a_batch_whose_requests_differ_in_everything(server: Server) -> None:
    chosen = ENDS[:9] + MIXES
    given: list[dict[str, Any]] = [
        {"temperature": 0.0, "max_new_tokens": 24, "custom_params": {"sgl_spec": fixed(i % 9)}, **params}
        for i, (_, params) in enumerate(chosen)
    ]
    texts = [text for text, _ in chosen]
    together = post(server, {"text": texts, "sampling_params": given, "return_logprob": True}).json()
    for (text, params), answer in zip(chosen, together, strict=True):
        alone = post(server, body_of(text, PLAIN, params, return_logprob=True)).json()
        assert answer["output_ids"] == alone["output_ids"]
        assert answer["text"] == alone["text"]
        assert answer["meta_info"]["finish_reason"] == alone["meta_info"]["finish_reason"]


def test_ids_in_place_of_text(server: Server) -> None:
    prompts = [[300 + 7 * i for i in range(n)] for n in (1, 2, 40)]
    plain, guess = (
        post(server, {**body_of("", given, {"ignore_eos": True}), "text": None, "input_ids": prompts}).json()
        for given in (PLAIN, fixed(8))
    )
    assert [answer["output_ids"] for answer in guess] == [answer["output_ids"] for answer in plain]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_openai_requests(server: Server, path: str) -> None:
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    asked = {"messages": messages} if "chat" in path else {"prompt": STORY}
    logprobs = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"logprobs": 2}
    mixes = [
        {},
        {"n": 2},
        {"stop": ["."]},
        {"stop": [" the"], **logprobs},
        {**logprobs, "n": 2},
        {"seed": 5, "temperature": 1},
    ]
    if "chat" not in path:
        mixes += [{"echo": True}, {"echo": True, **logprobs}, {"prompt": [STORY, DIGITS]}, {"suffix": " end"}]
    for mix in mixes:
        said = []
        for given in (PLAIN, fixed(8)):
            body = {"model": "default", "max_tokens": 16, "temperature": 0, **asked, **mix}
            answer = post(server, {**body, "custom_params": {"sgl_spec": given}}, path)
            said.append([answer.status_code, answer.json().get("choices")])
        assert said[0][0] == said[1][0] < httpx.codes.INTERNAL_SERVER_ERROR
        close(*said)


@pytest.fixture(scope="module")
def thinking_server() -> Iterator[Server]:
    """Its grammars wait for the end of a thought, which is a token sequence of the answer."""
    yield from start(demo_target(), draft_cache=False, reasoning_parser="deepseek-r1")


@pytest.mark.parametrize("k", LENGTHS)
def test_a_grammar_begins_where_a_thought_ends_inside_a_guess(thinking_server: Server, k: int) -> None:
    """B53: the rest of a guess that ends the thought is judged by the grammar, and what it emits is JSON."""
    thought = "So the answer is yes.</think>\n"
    for guess in ("", thought + '{"name": "Ada", "age": 36}', thought * 3, thought + "```json\n{"):
        said = []
        for given in (PLAIN, {**fixed(k), "prediction": guess}):
            params = {"regex": r'\n?\{"name": "[A-Za-z]{1,8}", "age": [0-9]{1,2}\}', "max_new_tokens": 60}
            said.append(post(thinking_server, body_of(thought * 8, given, params, require_reasoning=True)).json())
        assert said[0]["output_ids"] == said[1]["output_ids"]
        before, end, document = said[1]["text"].partition("</think>")
        assert "{" not in before
        assert end
        assert set(json.loads(document)) == {"name", "age"}
        assert said[1]["meta_info"]["finish_reason"]["type"] == "stop"
