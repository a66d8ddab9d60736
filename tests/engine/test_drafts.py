"""Drafts of another vocabulary, several drafts at once, and prefixes that both models have read."""

from collections.abc import Iterator
from typing import Any

import pytest

from sgl_spec.cpu.build import CHOICE
from sgl_spec.models import cache_root, demo_draft, demo_target
from tests.engine import drafts
from tests.engine.conftest import PROMPTS, Server, start

pytestmark = pytest.mark.engine
LENGTHS = (1, 4, 8)
TESTS = cache_root() / "tests"
FRUIT = PROMPTS[10]


def fixed(k: int, **more: Any) -> dict[str, Any]:
    return {"controller": "fixed", "num_speculative_tokens": k, **more}


def ids(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def rate(answers: list[dict[str, Any]]) -> float:
    counts = [answer["meta_info"]["sgl_spec"]["accepted_by_source"].get("model", {}) for answer in answers]
    return sum(c.get("accepted", 0) for c in counts) / max(1, sum(c.get("proposed", 0) for c in counts))


@pytest.fixture(scope="module", params=["tokens", "text", "bytes", "pyramid"])
def server(request) -> Iterator[Server]:
    """One engine after another: an 8k vocabulary by tokens and by text, a byte vocabulary, three models."""
    target = demo_target()
    if request.param == "pyramid":
        models = [drafts.random_draft(target, TESTS / "random-draft"), demo_draft(), target]
        yield from start(models, draft_cache=False)
    elif request.param == "bytes":
        yield from start(drafts.foreign_draft(target, TESTS / "foreign-bytes", merges=0, layers=1), draft_cache=False)
    else:
        eight = drafts.foreign_draft(target, TESTS / "foreign-8k", merges=8000)
        yield from start(eight, draft_cache=False, draft_vocabulary=request.param)


@pytest.fixture
def kind(request) -> str:
    """Which of the engines runs."""
    return request.node.callspec.params["server"]


@pytest.mark.long
def test_the_text_is_the_targets(server, kind, reference):
    found = {}
    for k in LENGTHS:
        answers = server.generate(PROMPTS, fixed(k))
        assert ids(answers) == reference
        found[k] = rate(answers)
    assert ids([server.generate(PROMPTS[3], fixed(4))]) == [reference[3]]
    if kind == "pyramid":
        assert found[4] == 1.0  # the largest model is the target
    elif kind != "bytes":
        assert found[1] > 0.5


@pytest.mark.long
def test_a_seed_repeats(server):
    plain, guess = (
        server.generate(FRUIT, options, temperature=1.2, sampling_seed=7)["text"]
        for options in ({"speculate": False}, fixed(4))
    )
    assert guess == plain


@pytest.mark.long
def test_the_server_says_how_its_draft_speaks(server, kind):
    state = server.runtime.server_state()
    words = {"tokens": "share 8", "text": "as text", "bytes": "as text", "pyramid": "3 draft models"}
    assert words[kind] in state["draft_vocabulary"]
    if kind == "pyramid":
        active = state["draft_levels"]["keys"][""]["active"]
        assert 0 not in active  # a random model never pays
        assert state["draft_levels"]["keys"][""]["overlap"]["1-2"] < 0.9


@pytest.mark.long
def test_forks_and_long_texts(server):
    head = " ".join(f"Item {i} costs {i * 7 % 13} coins." for i in range(40))
    texts = [f"{head} Which item costs {i} coins? Item" for i in range(4)]
    plain = ids(server.generate(texts, {"speculate": False}, max_new_tokens=12))
    assert ids(server.generate(texts, fixed(4), max_new_tokens=12)) == plain
    assert ids(server.generate(texts, fixed(4), max_new_tokens=12)) == plain


def test_a_pyramid_without_the_kernels(reference, monkeypatch):
    """Every level runs in SGLang's own model runner, as it does on other devices and for other architectures."""
    monkeypatch.setenv(CHOICE, "torch")
    models = [drafts.random_draft(demo_target(), TESTS / "random-draft"), demo_draft()]
    for server in start(models, draft_cache=False):
        answers = server.generate(PROMPTS[:4], fixed(4))
        assert ids(answers) == reference[:4]
        assert rate(answers) > 0.1
        assert "the CPU kernels are off because SGL_SPEC_CPU_KERNELS=torch" in server.runtime.server.log_tail(400)


@pytest.mark.parametrize("source", ["model", "prompt", "cache", "prediction", "all"])
def test_each_source_alone_and_all_together_keep_the_text(demo_server, reference, source):
    nothing = fixed(5, draft_model=False, cache=False, prompt_lookup=False, draft_confidence=0.0)
    for number in range(2):  # the second time the cache knows the answers
        for prompt, expected in zip(PROMPTS[2:8], reference[2:8], strict=True):
            options = {
                "model": {**nothing, "draft_model": True},
                "prompt": {**nothing, "prompt_lookup": True},
                "cache": {**nothing, "cache": True, "namespace": "sources"},
                "prediction": {**nothing, "prediction": [*expected[:9], 7, *expected[11:]]},
                "all": {**fixed(5), "prediction": expected[:12], "namespace": "sources"},
            }[source]
            answer = demo_server.generate(prompt, options)
            assert answer["output_ids"] == expected
            counts = answer["meta_info"]["sgl_spec"]["accepted_by_source"]
            if source in ("model", "prediction") or (source == "cache" and number):
                assert set(counts) == {source}
                assert counts[source]["accepted"] > 0 or source == "model"


PREFIX = " ".join(f"Lamp {i} stands in room {i * 5 % 11}." for i in range(30))


def test_a_shared_prefix_is_read_once_by_both_models(demo_server):
    text, options = f"{PREFIX} Lamp 4 stands in", fixed(3, cache=False, prompt_lookup=False, draft_confidence=0.0)
    plain = demo_server.generate(text, {"speculate": False}, max_new_tokens=12)
    first = demo_server.generate(text, options, max_new_tokens=12)
    again = demo_server.generate(f"{PREFIX} Lamp 4 stands in", options, max_new_tokens=12)
    assert first["output_ids"] == again["output_ids"] == plain["output_ids"]
    stats = again["meta_info"]["sgl_spec"]
    prompt = again["meta_info"]["prompt_tokens"]
    assert stats["num_cached_tokens_target"] == again["meta_info"]["cached_tokens"] > 0.9 * prompt
    assert stats["num_cached_tokens_draft"] > 0.9 * prompt
    assert stats["draft_acceptance_rate"] == pytest.approx(first["meta_info"]["sgl_spec"]["draft_acceptance_rate"])


def test_a_prefix_can_be_read_ahead(demo_server):
    head = f"In another house: {PREFIX}"
    demo_server.runtime.cache_prefix(head)
    answer = demo_server.generate(f"{head} Lamp 9 stands in", fixed(3, cache=False), max_new_tokens=8)
    stats, prompt = answer["meta_info"]["sgl_spec"], answer["meta_info"]["prompt_tokens"]
    assert stats["num_cached_tokens_target"] > 0.9 * (prompt - 6)
    assert stats["num_cached_tokens_draft"] > 0.9 * (prompt - 6)
    assert demo_server.runtime.stats()["prefix_cache"]["draft_tokens"] > 0
