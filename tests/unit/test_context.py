"""Context lengths of a target and its drafts."""

import pytest

from sgl_spec.context import known_positions, shorter_drafts
from sgl_spec.errors import ConfigError

TARGET = {"max_position_embeddings": 2048}


def test_positions() -> None:
    assert known_positions(TARGET) == 2048
    assert known_positions({"text_config": TARGET}) == 2048
    assert known_positions({**TARGET, "rope_scaling": {"factor": 4.0}}) == 8192
    assert known_positions({}) is None


def test_a_shorter_draft_is_named() -> None:
    drafts = [("/models/short", {"max_position_embeddings": 256}), ("/models/long", TARGET), ("/models/x", {})]
    assert shorter_drafts(512, TARGET, drafts) == ["short: 256"]
    assert shorter_drafts(128, TARGET, drafts) == []


def test_what_the_target_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="context_length=4096"):
        shorter_drafts(4096, TARGET, [("short", {"max_position_embeddings": 256})])
