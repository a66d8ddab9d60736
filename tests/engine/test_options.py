"""Sampling options under guessing, seeds, and request options: obeyed, or refused without harm to others."""

import re

import httpx
import pytest

from tests.engine.conftest import PROMPTS, Server

pytestmark = pytest.mark.engine
GUESS = {"controller": "fixed", "num_speculative_tokens": 5}
PLAIN = {"speculate": False}
ROBOT = PROMPTS[19]


def test_a_seed_repeats_whatever_the_draft_length(self_server):
    texts = {
        self_server.generate(ROBOT, {**GUESS, "num_speculative_tokens": k}, temperature=1.5, sampling_seed=7)["text"]
        for k in (0, 1, 5, 5)
    }
    assert len(texts) == 1
    other = self_server.generate(ROBOT, GUESS, temperature=1.5, sampling_seed=8)["text"]
    assert other not in texts


def test_unseeded_samples_differ(self_server):
    texts = [self_server.generate(ROBOT, GUESS, temperature=1.5, max_new_tokens=12)["text"] for _ in range(3)]
    assert len(set(texts)) > 1


def test_greedy_requests_beside_sampled_ones_keep_their_text(self_server, reference):
    sampling = [
        {"temperature": 0.0},
        {"temperature": 1.3},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.1},
        {"temperature": 0.0, "frequency_penalty": 1.0},
        {"temperature": 1.0, "sampling_seed": 3},
        {"temperature": 0.0},
    ]
    prompts = [PROMPTS[i] for i in (0, 1, 2, 3, 4, 5, 6)]
    body = {
        "text": prompts,
        "sampling_params": [{"max_new_tokens": 24, "custom_params": {"sgl_spec": GUESS}, **one} for one in sampling],
    }
    answers = httpx.post(f"{self_server.url}/generate", json=body, timeout=300).json()
    for i in (0, 2, 6):  # top_k = 1 is greedy at any temperature
        assert answers[i]["output_ids"] == reference[i]


@pytest.mark.parametrize(
    "params",
    [
        {"frequency_penalty": 1.5},
        {"presence_penalty": -1.0},
        {"repetition_penalty": 1.3},
        {"logit_bias": {"284": 100.0}},
        {"regex": "[a-z ]{5,40}"},
    ],
)
def test_processors_act_at_every_position(self_server: Server, params):
    plain = self_server.generate(PROMPTS[2], PLAIN, **params)
    guess = self_server.generate(PROMPTS[2], GUESS, **params)
    assert guess["output_ids"] == plain["output_ids"]


def test_a_grammar_ends_the_request(self_server):
    for tokens in (3, 16):
        answer = self_server.generate(PROMPTS[3], GUESS, regex="[0-9]{3}", max_new_tokens=tokens)
        assert re.fullmatch("[0-9]{3}", answer["text"])


@pytest.mark.long
def test_json_comes_out_of_a_hostile_draft(bad_server):
    answer = bad_server.generate(PROMPTS[16], GUESS, regex=r'\{"name": "[A-Za-z]{1,8}"\}', max_new_tokens=24)
    assert re.fullmatch(r'\{"name": "[A-Za-z]{1,8}"\}', answer["text"])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"speculat": False}, "speculate"),
        ({"num_speculative_tokens": 1000}, "num_speculative_tokens"),
        ({"prediction": [10**9]}, "token id"),
        ("fast", "sgl_spec"),
    ],
)
def test_wrong_options_are_refused_and_the_server_lives(self_server, options, word):
    body = {"text": "Hi", "sampling_params": {"max_new_tokens": 2, "custom_params": {"sgl_spec": options}}}
    answer = httpx.post(f"{self_server.url}/generate", json=body, timeout=60)
    assert answer.status_code == 400
    assert word in answer.text
    assert self_server.generate("Hi", max_new_tokens=2)["meta_info"]["completion_tokens"] == 2


def test_a_prediction_is_a_source(self_server):
    text = self_server.generate(PROMPTS[2], PLAIN)["text"]
    answer = self_server.generate(PROMPTS[2], {**GUESS, "prediction": text})
    assert answer["text"] == text
    assert answer["meta_info"]["sgl_spec"]["accepted_by_source"]["prediction"]["accepted"] > 5
