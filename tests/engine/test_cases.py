"""Public bug reports about speculative decoding as small inputs: requests that other engines got wrong.

The numbers are those of `docs/cases.md`. Each runs where every guess is right (the target drafts for itself)
and, in the long form, with 1, 4 and 8 guesses a round, also where every guess is wrong (random weights) and on the
demo pair.
"""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
import sglang as sgl

from sgl_spec.request_options import options
from sgl_spec.server_error import ServerError
from tests.engine.conftest import PROMPTS, Server
from tests.engine.test_finish import PLAIN, REPEAT, SAY_OK, same

pytestmark = pytest.mark.engine
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
EMOJI = PROMPTS[14].replace("Why is the sky blue?", "Reply with exactly: 🙂🙂👩‍👩‍👧 你好世界")
P7 = "The rules of the library are read out at the door. " * 25
SUFFIXES = ["Rule one:", "Rule two is that", "Nobody may", "The door"]


def fixed(k: int) -> dict[str, Any]:
    return {"controller": "fixed", "num_speculative_tokens": k}


def lengths() -> list[Any]:
    every = [(name, k) for name in ("self_server", "bad_server", "demo_server") for k in (8, 4, 1)]
    return [
        pytest.param(one, id=f"{one[0]}-{one[1]}", marks=[pytest.mark.long] if at else [])
        for at, one in enumerate(every)
    ]


@pytest.fixture(params=lengths())
def server(request: pytest.FixtureRequest) -> Server:
    name, k = request.param
    return replace(request.getfixturevalue(name), k=k)


# Finish conditions


@pytest.mark.parametrize("more", [1, 2, 3])
def test_b03_nothing_follows_eos_when_length_is_near(server: Server, more: int) -> None:
    natural = len(server.generate(SAY_OK, PLAIN, max_new_tokens=64)["output_ids"])
    assert same(server, SAY_OK, max_new_tokens=natural + more)["meta_info"]["finish_reason"]["type"] == "stop"


def test_b04_ids_and_logprobs_end_with_the_stop_string(server: Server) -> None:
    meta = same(server, REPEAT, stop=[" test"], max_new_tokens=32, return_logprob=True)
    assert len(meta["output_ids"]) == meta["meta_info"]["completion_tokens"]
    assert len(meta["meta_info"]["output_token_logprobs"]) == len(meta["output_ids"])


def test_b06_no_chunk_after_the_end(server: Server) -> None:
    chunks = list(stream(server, SAY_OK, server.guess, max_new_tokens=48))
    ended = [bool(chunk["meta_info"]["finish_reason"]) for chunk in chunks]
    assert ended == [False] * (len(chunks) - 1) + [True]


def test_b07_a_wrong_guess_of_eos_ends_nothing(server: Server) -> None:
    plain = server.generate(PROMPTS[2], PLAIN, max_new_tokens=24)
    for wrong in ([2], [2, 2, 2], [*plain["output_ids"][:2], 2], [plain["output_ids"][0], 0, 2]):
        guess = server.generate(PROMPTS[2], {**server.guess, "prediction": wrong}, max_new_tokens=24)
        assert guess["output_ids"] == plain["output_ids"]


def test_b09_a_stop_string_waits_for_min_new_tokens(server: Server) -> None:
    same(server, SAY_OK, min_new_tokens=20, max_new_tokens=32, stop=["."])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_b11_min_new_tokens_is_exact(server: Server, temperature: float) -> None:
    answer = server.generate(SAY_OK, server.guess, min_new_tokens=8, max_new_tokens=8, temperature=temperature)
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) == 8


def test_b12_a_short_request_gets_all_its_tokens(server: Server) -> None:
    assert same(server, "You are", max_new_tokens=4)["meta_info"]["completion_tokens"] == 4


# Context and length


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_b21_empty_prompts_behave_as_without_guesses(server: Server, text: str) -> None:
    """A prompt of no token, of which stock SGLang's scheduler dies, is refused."""
    answers = [ask(server, text, options, max_new_tokens=4) for options in (PLAIN, server.guess)]
    assert (answers[0].status_code == httpx.codes.OK) == bool(text)
    assert answers[0].status_code == answers[1].status_code
    if answers[0].status_code == httpx.codes.OK:
        assert answers[0].json()["output_ids"] == answers[1].json()["output_ids"]


# Sampling


def test_b25_long_answers_are_the_same_tokens(server: Server) -> None:
    for prompt in (PROMPTS[2], PROMPTS[1], PROMPTS[17]):
        same(server, prompt, max_new_tokens=150, ignore_eos=True)


def test_b27_seeds(server: Server) -> None:
    def say(seed: int, temperature: float) -> str:
        return server.generate(
            PROMPTS[19], server.guess, temperature=temperature, sampling_seed=seed, max_new_tokens=10
        )["text"]

    assert len({say(42, 2.0) for _ in range(5)}) == 1
    assert len({say(seed, 2.0) for seed in range(0, 100, 20)}) > 1
    assert len({say(seed, 0.0) for seed in (0, 10, 90)}) == 1


def test_b33_a_frequency_penalty_acts(server: Server) -> None:
    prompt = "Repeat the word 'hello' multiple times: hello"
    texts = {same(server, prompt, max_new_tokens=8, frequency_penalty=p)["text"] for p in (-2.0, 2.0)}
    assert len(texts) == 2


def test_b35_an_impossible_penalty_is_refused(server: Server) -> None:
    answer = ask(server, "Hi", server.guess, repetition_penalty=0.0, max_new_tokens=4)
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert same(server, "Hi", max_new_tokens=2)


def test_b36_a_bias_acts_at_every_position(server: Server) -> None:
    forced = same(server, PROMPTS[0], logit_bias={"260": 100.0}, max_new_tokens=9)
    assert set(forced["output_ids"]) == {260}
    never = same(server, SAY_OK, logit_bias={"2": -100.0}, max_new_tokens=40)
    assert 2 not in never["output_ids"]


def test_b37_a_custom_processor_is_refused_or_obeyed(server: Server) -> None:
    body = {"text": "Hi", "custom_logit_processor": "{}", "sampling_params": {"max_new_tokens": 2}}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=60)
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert "custom" in answer.text


# Logprobs and select


def test_b41_every_sampled_token_has_its_logprob(server: Server) -> None:
    answer = server.generate(
        PROMPTS[0], server.guess, temperature=1.0, return_logprob=True, max_new_tokens=16, ignore_eos=True
    )
    logprobs = answer["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in logprobs] == answer["output_ids"]
    assert len(logprobs) == 16
    assert all(value <= 0 for value, _, _ in logprobs)


def test_b42_top_logprobs_are_probabilities(server: Server) -> None:
    import math

    answer = server.generate(PROMPTS[0], server.guess, return_logprob=True, top_logprobs_num=5, max_new_tokens=12)
    for top in answer["meta_info"]["output_top_logprobs"]:
        assert sum(math.exp(value) for value, _, _ in top) <= 1 + 1e-4


def test_b44_select_scores_and_emits_nothing(server: Server) -> None:
    @sgl.function
    def judge(s: Any, thing: str) -> None:
        s += f"Is {thing} an animal? Answer: "
        s += sgl.select("x", choices=["yes", "no"])

    picked = []
    for given in (PLAIN, server.guess):
        with options(**given):
            states = [judge.run(thing=t, backend=server.endpoint) for t in ("a dog", "a stone", "an owl", "soup")]
        picked.append([(s["x"], s.get_meta_info("x")["normalized_prompt_logprobs"]) for s in states])
    for (plain, scores), (guess, others) in zip(*picked, strict=True):
        assert plain == guess
        assert others == pytest.approx(scores, abs=1e-3)
    empty = server.generate(PROMPTS[0], server.guess, max_new_tokens=0)
    assert empty["text"] == ""
    assert empty["meta_info"]["completion_tokens"] == 0


# Grammar


@pytest.mark.parametrize("k", [1, 8])
def test_b46_b49_json_in_a_row(server: Server, k: int) -> None:
    for i in range(5):
        answer = server.generate(f"{PROMPTS[16]} {i}", fixed(k), json_schema=SCHEMA, max_new_tokens=40)
        assert answer["meta_info"]["finish_reason"]["type"] != "abort"
        document = json.loads(answer["text"])
        assert set(document) == {"name", "age"}


def test_b48_json_beside_a_plain_request(server: Server) -> None:
    jobs = [
        (PROMPTS[2], {"max_new_tokens": 60, "ignore_eos": True}),
        (PROMPTS[16], {"json_schema": SCHEMA, "max_new_tokens": 40}),
    ]
    with ThreadPoolExecutor(2) as pool:
        long, short = pool.map(lambda job: server.generate(job[0], server.guess, **job[1]), jobs)
    assert long["meta_info"]["completion_tokens"] == 60
    json.loads(short["text"])


@pytest.mark.parametrize("tokens", [3, 16])
def test_b51_the_end_of_a_grammar_is_the_end(server: Server, tokens: int) -> None:
    answer = same(server, PROMPTS[3], regex="[0-9]{3}", max_new_tokens=tokens)
    assert re.fullmatch("[0-9]{3}", answer["text"])


def test_b55_the_callers_stop_list_stays_as_it_is(server: Server) -> None:
    stops = ["x"]

    @sgl.function
    def count(s: Any) -> None:
        s += "2 + 2 = " + sgl.gen("n", dtype=int, stop=stops, max_tokens=4)

    for _ in range(3):
        count.run(backend=server.endpoint)
    assert stops == ["x"]


# Prefix cache and fork


def test_b75_hits_equal_the_cold_answers(server: Server) -> None:
    empty(server)
    cold = [server.generate(P7 + suffix, PLAIN, max_new_tokens=12)["output_ids"] for suffix in SUFFIXES]
    empty(server)
    guess = {**server.guess, "cache": False, "prompt_lookup": False}  # what was said before is no guess of the model
    warm = [server.generate(P7 + suffix, guess, max_new_tokens=12) for suffix in SUFFIXES]
    assert [answer["output_ids"] for answer in warm] == cold
    assert all(answer["meta_info"]["cached_tokens"] > 200 for answer in warm[1:])
    again = [server.generate(P7 + suffix, guess, max_new_tokens=12) for suffix in SUFFIXES]
    assert [answer["output_ids"] for answer in again] == cold
    rates = [[a["meta_info"]["sgl_spec"]["draft_acceptance_rate"] for a in run] for run in (warm, again)]
    assert rates[0] == rates[1]


def test_b77_a_conversation_is_reused_turn_by_turn(server: Server) -> None:
    empty(server)
    ids, known = list(range(300, 330)), 1
    for turn in range(5):
        sampling = {"temperature": 0, "max_new_tokens": 12, "custom_params": {"sgl_spec": server.guess}}
        body = {"input_ids": ids, "sampling_params": sampling}
        answer = httpx.post(f"{server.url}/generate", json=body, timeout=120).json()
        assert answer["meta_info"]["cached_tokens"] >= known - 1
        ids += [*answer["output_ids"], *range(500 + 9 * turn, 507 + 9 * turn)]
        known = answer["meta_info"]["prompt_tokens"] + answer["meta_info"]["completion_tokens"] - 1


def test_b80_forks_before_any_text(server: Server) -> None:
    @sgl.function
    def forks(s: Any) -> None:
        branches = s.fork(3)
        for at in range(3):
            branches[at] += f"The number {at} is" + sgl.gen("x", max_tokens=4, temperature=0)
        s += "".join(branch["x"] for branch in branches)

    state = forks.run(backend=server.endpoint)
    assert state.error() is None
    expected = [server.generate(f"The number {at} is", PLAIN, max_new_tokens=4)["text"] for at in range(3)]
    assert state.text() == "".join(expected)


# Adaptive length


def test_b86_without_guesses_the_draft_does_not_run(server: Server) -> None:
    before = server.runtime.stats()
    server.generate(PROMPTS[2], fixed(0), max_new_tokens=12)
    after = server.runtime.stats()
    assert after["num_draft_tokens"] == before["num_draft_tokens"]


@pytest.mark.parametrize("k", [1, 8])
def test_b91_the_length_that_was_asked_for(server: Server, k: int) -> None:
    stats = server.generate(PROMPTS[2], fixed(k), max_new_tokens=1 + 4 * (k + 1), ignore_eos=True)["meta_info"][
        "sgl_spec"
    ]
    assert set(stats["acceptance_histogram_by_draft_length"]) <= {str(n) for n in range(k + 1)}
    assert str(k) in stats["acceptance_histogram_by_draft_length"]


# Metrics


def test_b92_b94_a_rate_is_a_share(server: Server) -> None:
    for k in (1, 3, 8):
        stats = server.generate(PROMPTS[4], fixed(k), max_new_tokens=20)["meta_info"]["sgl_spec"]
        assert 0 <= stats["draft_acceptance_rate"] <= 1
        rate = stats["num_accepted_draft_tokens"] / stats["num_draft_tokens"]
        assert stats["draft_acceptance_rate"] == pytest.approx(rate)


# Front end


def test_b106_three_samples_are_a_list(server: Server) -> None:
    @sgl.function
    def ask_three(s: Any) -> None:
        s += PROMPTS[19] + sgl.gen("x", n=3, max_tokens=6, temperature=1.0)

    state = ask_three.run(backend=server.endpoint)
    assert state.error() is None
    assert len(state["x"]) == len(state.get_meta_info("x")) == 3
    assert state.text() == PROMPTS[19] + state["x"][0]


def test_b111_streams_are_whole_characters(server: Server) -> None:
    for tokens in (5, 9, 13, 24):
        plain = server.generate(EMOJI, PLAIN, max_new_tokens=tokens)
        texts = [chunk["text"] for chunk in stream(server, EMOJI, server.guess, max_new_tokens=tokens)]
        assert texts[-1] == plain["text"]
        assert not any("\ufffd" in text for text in texts[:-1])


def empty(server: Server) -> None:
    """Empty the prefix cache; a request that was just answered may still be on its way out."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return server.runtime.flush_cache()
        except ServerError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def ask(server: Server, text: str, given: dict[str, Any], **params: Any) -> httpx.Response:
    sampling = {"temperature": 0.0, "custom_params": {"sgl_spec": given}, **params}
    return httpx.post(f"{server.url}/generate", json={"text": text, "sampling_params": sampling}, timeout=120)


def stream(server: Server, text: str, given: dict[str, Any], **params: Any) -> Any:
    """Yield the chunks of a streamed answer; their text is all text so far."""
    sampling = {"temperature": 0.0, "custom_params": {"sgl_spec": given}, **params}
    body = {"text": text, "sampling_params": sampling, "stream": True}
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))
