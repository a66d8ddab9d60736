"""Requests end where they would without a draft: length, EOS, stop strings, inside an accepted run too."""

import pytest

from tests.engine.conftest import PROMPTS, Server

pytestmark = pytest.mark.engine
PLAIN = {"speculate": False}
SAY_OK = PROMPTS[15]
REPEAT = "Repeat this sentence for 50 times: This is a test"


def same(server: Server, prompt: str, **params) -> dict:
    """Ask with and without guesses; both must agree on ids, text and the reason to finish."""
    plain = server.generate(prompt, PLAIN, **params)
    guess = server.generate(prompt, server.guess, **params)
    assert guess["output_ids"] == plain["output_ids"]
    assert guess["text"] == plain["text"]
    assert guess["meta_info"]["finish_reason"] == plain["meta_info"]["finish_reason"]
    assert guess["meta_info"]["completion_tokens"] == plain["meta_info"]["completion_tokens"]
    return guess


@pytest.mark.parametrize("count", [1, 2, 3, 7, 9, 10])
def test_max_new_tokens(self_server, count):
    assert same(self_server, PROMPTS[2], max_new_tokens=count)["meta_info"]["completion_tokens"] == count


def test_eos_inside_an_accepted_run(self_server):
    answer = same(self_server, SAY_OK, max_new_tokens=48)
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"


def test_eos_ignored(self_server):
    assert same(self_server, SAY_OK, max_new_tokens=40, ignore_eos=True)["meta_info"]["completion_tokens"] == 40


@pytest.mark.parametrize("stop", [[" test"], ["s"], ["is a"], [".", "\n"]])
def test_stop_strings(self_server, stop):
    same(self_server, REPEAT, stop=stop, max_new_tokens=32)


def test_min_new_tokens(self_server):
    answer = same(self_server, SAY_OK, min_new_tokens=20, max_new_tokens=32)
    assert answer["meta_info"]["completion_tokens"] >= 20


def test_nothing_to_generate(self_server):
    answer = self_server.generate(PROMPTS[0], self_server.guess, max_new_tokens=0)
    assert answer["text"] == ""


def test_logprobs_of_every_token(self_server):
    plain = self_server.generate(PROMPTS[0], PLAIN, return_logprob=True, top_logprobs_num=3, max_new_tokens=16)
    guess = self_server.generate(
        PROMPTS[0], self_server.guess, return_logprob=True, top_logprobs_num=3, max_new_tokens=16
    )
    for key in ("output_token_logprobs", "output_top_logprobs"):
        assert len(guess["meta_info"][key]) == len(guess["output_ids"])
    for (ours, our_id, _), (theirs, their_id, _) in zip(
        guess["meta_info"]["output_token_logprobs"], plain["meta_info"]["output_token_logprobs"], strict=True
    ):
        assert our_id == their_id
        assert ours == pytest.approx(theirs, abs=1e-3)


def test_the_pool_is_as_empty_as_before(self_server):
    self_server.runtime.flush_cache()
    before = self_server.runtime.server_state()["kv_slots_free"]
    for start in range(0, 64, 8):
        prompts = [f"{PROMPTS[i % 20]} {i}" for i in range(start, start + 8)]
        self_server.generate(prompts, self_server.guess, max_new_tokens=6)
    self_server.runtime.flush_cache()
    assert self_server.runtime.server_state()["kv_slots_free"] == before
