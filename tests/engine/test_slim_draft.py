"""A draft that is narrower than its target, with embeddings and an int8 head of its own, in the engine."""

import pytest

from sgl_spec.models import demo_draft, demo_target
from tests.engine import drafts
from tests.engine.conftest import PROMPTS, start
from tests.engine.test_drafts import TESTS, fixed, ids, rate

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_its_guesses_are_right_now_and_then_and_the_text_is_the_targets(reference):
    folder = drafts.slim_draft(demo_draft(), demo_target(), TESTS / f"slim-{demo_draft().name}")
    for server in start(folder, draft_cache=False):
        found = {}
        for k in (1, 4, 8):
            answers = server.generate(PROMPTS, fixed(k))
            assert ids(answers) == reference
            found[k] = rate(answers)
        assert found[1] > 0.1
