"""Sampled tokens follow the target's law, whichever source guesses; and the test sees a sampler that is wrong.

Joint law of three tokens after a prompt, chi-square against the target's own probabilities. A correct engine fails
one of these cases with probability 1e-6; each states its power against an error of 10% of the mass.
"""

from pathlib import Path
from typing import Any

import pytest

from sgl_spec.bench.load import Client
from sgl_spec.certify_law import Law, LawTest, check_law, exact_law
from sgl_spec.models import cache_root, demo_draft, demo_target
from tests.engine import drafts
from tests.engine.conftest import start

pytestmark = [pytest.mark.engine, pytest.mark.long]
ALPHA = 1e-6
DRAWS = 640
# The beginning comes twice, so that the prompt itself has a guess.
TEXT = "Once upon a time, in a small village, there was an old mill. Once upon a time, in a small village,"
FIXED = {"controller": "fixed", "num_speculative_tokens": 3, "draft_confidence": 0.0}
NOTHING = {**FIXED, "draft_model": False, "cache": False, "prompt_lookup": False}
TEMPERATURES = (0.7, 1.3)


@pytest.fixture(scope="session")
def prompt() -> list[int]:
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(demo_target()).encode(TEXT)
    return ids


@pytest.fixture(scope="session")
def prediction() -> list[int]:
    """A likely text, as a caller would predict it."""
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(demo_target()).encode(" there was a young")
    return ids


_laws: dict[tuple[int, ...], Law] = {}  # the target's, the same whichever engine is asked first


def draw(server: Any, prompt: list[int], temperature: float, options: dict[str, Any]) -> LawTest:
    client = Client(server.url)
    law = _laws.get(tuple(prompt)) or _laws.setdefault(tuple(prompt), exact_law(client, prompt))
    found = check_law(client, "law", prompt, law, temperature, DRAWS, ALPHA, options)
    print(found.model_dump_json())
    assert found.power > 0.5
    assert found.proposed > DRAWS / 4
    return found


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("source", ["model", "prompt", "cache", "prediction", "all"])
def test_each_source_alone_and_all_together(demo_server, prompt, prediction, source, temperature):
    options: dict[str, dict[str, Any]] = {
        "model": {**NOTHING, "draft_model": True},
        "prompt": {**NOTHING, "prompt_lookup": True},
        "cache": {**NOTHING, "cache": True, "namespace": f"law {temperature}"},
        "prediction": {**NOTHING, "prediction": prediction},
        "all": {**FIXED, "prediction": prediction, "namespace": f"all {temperature}"},
    }
    assert draw(demo_server, prompt, temperature, options[source]).passed


@pytest.mark.parametrize("kind", ["tokens", "text", "pyramid"])
def test_other_drafts(prompt, kind):
    target, folder = demo_target(), cache_root() / "tests"
    if kind == "pyramid":
        models: Any = [drafts.random_draft(target, folder / "random-draft"), demo_draft(), target]
        settings = {}
    else:
        models = drafts.foreign_draft(target, folder / "foreign-8k", merges=8000)
        settings = {"draft_vocabulary": kind}
    running = start(models, draft_cache=False, **settings)
    try:
        server = next(running)
        for temperature in TEMPERATURES:
            assert draw(server, prompt, temperature, FIXED).passed
    finally:
        running.close()


BENT = '''
import importlib.abc
import importlib.util
import sys


class Bent(importlib.abc.MetaPathFinder):
    """Accepts with probability p(x), not min(1, p(x) / q(x))."""

    def find_spec(self, name, path=None, target=None):
        if name != "sgl_spec.verify.accept":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            import torch

            run(module)
            module._q_of_guesses = lambda q, guesses: torch.ones(guesses.shape, dtype=torch.float64)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Bent())
'''


def test_a_planted_error_is_seen(prompt, tmp_path: Path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(BENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # A draft that differs from its target: with q = p the error would only sharpen the law a little.
    running = start(demo_draft(), draft_cache=False)
    try:
        found = draw(next(running), prompt, 1.3, {**NOTHING, "draft_model": True})
    finally:
        running.close()
    assert not found.passed
