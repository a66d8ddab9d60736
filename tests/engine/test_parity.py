"""Greedy output ids equal those of the engine without a draft and of Transformers, for every draft and K."""

import pytest
import torch

from sgl_spec.models import demo_target
from tests.engine.conftest import PROMPTS, Server

pytestmark = pytest.mark.engine
LENGTHS = (1, 3, 5, 8)
HF_PROMPTS = 6


def fixed(k: int) -> dict:
    return {"controller": "fixed", "num_speculative_tokens": k}


def ids(answers: list[dict]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def test_the_plain_engine_says_what_transformers_says(reference):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_target())
    model = AutoModelForCausalLM.from_pretrained(demo_target(), dtype=torch.float32)
    for prompt, expected in list(zip(PROMPTS, reference, strict=True))[:HF_PROMPTS]:
        given = tokenizer(prompt, return_tensors="pt").input_ids
        said = model.generate(given, max_new_tokens=24, do_sample=False)[0, given.shape[1] :].tolist()
        assert said == expected, prompt


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("name", ["self_server", "bad_server", "demo_server"])
def test_a_batch_says_what_the_plain_engine_says(request, name, k, reference):
    server: Server = request.getfixturevalue(name)
    assert ids(server.generate(PROMPTS, fixed(k))) == reference
    # The second run finds the prompts' KV in the radix cache, and the draft must read it again or has it.
    assert ids(server.generate(PROMPTS[:8], fixed(k))) == reference[:8]


@pytest.mark.parametrize("name", ["self_server", "bad_server", "demo_server"])
def test_one_by_one(request, name, reference):
    server: Server = request.getfixturevalue(name)
    for k, (prompt, expected) in zip(LENGTHS * 2, zip(PROMPTS, reference, strict=True), strict=False):
        assert server.generate(prompt, fixed(k))["output_ids"] == expected, (k, prompt)


def test_every_guess_of_the_target_itself_is_accepted(self_server):
    for k in LENGTHS:
        for answer in self_server.generate(PROMPTS[:6], fixed(k)):
            stats = answer["meta_info"]["sgl_spec"]
            assert stats["num_accepted_draft_tokens"] == stats["num_draft_tokens"] > 0
            assert stats["accepted_by_source"]["model"]["draft_acceptance_rate"] == 1.0


def test_random_guesses_are_not_accepted(bad_server):
    stats = bad_server.generate(PROMPTS[0], fixed(5))["meta_info"]["sgl_spec"]
    assert stats["num_draft_tokens"] > 0
    assert stats["draft_acceptance_rate"] < 0.2


def test_lengths_differ_within_a_batch_and_over_rounds(self_server, reference):
    options = [fixed(k) for k in (0, 1, 2, 3, 5, 8, 4, 7)]
    sampling = [
        {"temperature": 0.0, "max_new_tokens": 24, "custom_params": {"sgl_spec": one}} for one in options
    ]
    import httpx

    body = {"text": PROMPTS[:8], "sampling_params": sampling}
    assert ids(httpx.post(f"{self_server.url}/generate", json=body, timeout=300).json()) == reference[:8]


def test_the_adaptive_controller_keeps_the_text(demo_server, reference):
    assert ids(demo_server.generate(PROMPTS, {"program": "parity"})) == reference


def test_without_radix_cache_and_with_chunked_prefill(odd_server, reference):
    for k in (1, 8):
        assert ids(odd_server.generate(PROMPTS, fixed(k))) == reference


def test_a_long_prompt_in_chunks(odd_server, plain_server):
    prompt = " ".join(f"Item {i} costs {i * 7 % 13} coins." for i in range(60))
    expected = plain_server.generate(prompt)["output_ids"]
    assert odd_server.generate(prompt, fixed(5))["output_ids"] == expected
