"""Greedy output ids equal those of Transformers and of the engine without a draft, for every draft and K.

An engine takes about 4 GB, so the quick form keeps two (the target as its own draft, the demo pair) and the long
form adds the others: without a draft, with a random one, without a radix cache and with chunked prefill.
"""

import httpx
import pytest

from sgl_spec.models import cache_root, demo_target
from tests.engine import drafts
from tests.engine.conftest import PROMPTS, Server, start

pytestmark = pytest.mark.engine
LENGTHS = (1, 3, 5, 8)
DRAFTS = ["self_server", "demo_server", pytest.param("bad_server", marks=pytest.mark.long)]


def fixed(k: int) -> dict:
    return {"controller": "fixed", "num_speculative_tokens": k}


def ids(answers: list[dict]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


@pytest.mark.long
def test_the_plain_engine_says_what_transformers_says(plain_server, reference):
    assert ids(plain_server.generate(PROMPTS)) == reference


def test_a_request_without_guesses_says_what_transformers_says(demo_server, reference):
    assert ids(demo_server.generate(PROMPTS, {"speculate": False})) == reference


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("name", DRAFTS)
def test_a_batch_says_what_the_plain_engine_says(request, name, k, reference):
    server: Server = request.getfixturevalue(name)
    assert ids(server.generate(PROMPTS, fixed(k))) == reference
    # The second run finds the prompts' KV in the radix cache, and the draft must read it again or has it.
    assert ids(server.generate(PROMPTS[:8], fixed(k))) == reference[:8]


@pytest.mark.parametrize("name", DRAFTS)
def test_one_by_one(request, name, reference):
    server: Server = request.getfixturevalue(name)
    for k, (prompt, expected) in zip(LENGTHS * 2, zip(PROMPTS, reference, strict=True), strict=False):
        assert server.generate(prompt, fixed(k))["output_ids"] == expected, (k, prompt)


@pytest.mark.long
@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("name", DRAFTS)
def test_every_prompt_one_by_one(request, name, k, reference):
    server: Server = request.getfixturevalue(name)
    for prompt, expected in zip(PROMPTS, reference, strict=True):
        assert server.generate(prompt, fixed(k))["output_ids"] == expected, prompt


def test_every_guess_of_the_target_itself_is_accepted(self_server):
    for k in LENGTHS:
        for answer in self_server.generate(PROMPTS[:6], fixed(k)):
            stats = answer["meta_info"]["sgl_spec"]
            assert stats["num_accepted_draft_tokens"] == stats["num_draft_tokens"] > 0
            assert stats["accepted_by_source"]["model"]["draft_acceptance_rate"] == 1.0


@pytest.mark.long
def test_random_guesses_are_not_accepted(bad_server):
    stats = bad_server.generate(PROMPTS[0], fixed(5))["meta_info"]["sgl_spec"]
    assert stats["num_draft_tokens"] > 0
    assert stats["draft_acceptance_rate"] < 0.2


def test_lengths_differ_within_a_batch_and_over_rounds(self_server, reference):
    options = [fixed(k) for k in (0, 1, 2, 3, 5, 8, 4, 7)]
    sampling = [{"temperature": 0.0, "max_new_tokens": 24, "custom_params": {"sgl_spec": one}} for one in options]
    body = {"text": PROMPTS[:8], "sampling_params": sampling}
    assert ids(httpx.post(f"{self_server.url}/generate", json=body, timeout=300).json()) == reference[:8]


def test_the_adaptive_controller_keeps_the_text(demo_server, reference):
    assert ids(demo_server.generate(PROMPTS, {"program": "parity"})) == reference


@pytest.mark.long
def test_without_radix_cache_and_with_chunked_prefill(odd_server, reference):
    for k in (1, 8):
        assert ids(odd_server.generate(PROMPTS, fixed(k))) == reference


@pytest.mark.long
def test_a_long_prompt_in_chunks(odd_server, plain_server):
    prompt = " ".join(f"Item {i} costs {i * 7 % 13} coins." for i in range(60))
    expected = plain_server.generate(prompt)["output_ids"]
    assert odd_server.generate(prompt, fixed(5))["output_ids"] == expected


@pytest.mark.long
@pytest.mark.parametrize("name", ["self", "bad"])
def test_every_length_without_radix_cache_in_chunks(name):
    random = cache_root() / "tests" / "random-draft"
    draft = demo_target() if name == "self" else drafts.random_draft(demo_target(), random)
    for server in start(draft, disable_radix_cache=True, chunked_prefill_size=64, draft_cache=False):
        plain = ids(server.generate(PROMPTS, {"speculate": False}))
        for k in LENGTHS:
            assert ids(server.generate(PROMPTS, fixed(k))) == plain, k
