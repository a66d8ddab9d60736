"""A server whose weights are packed says so to whoever wants to exchange, read or free them."""

import asyncio

import pytest
from sglang.srt.managers.tokenizer_manager import TokenizerManager

from sgl_spec.errors import ConfigError
from sgl_spec.sglang_plugin import fixed_weights
from sgl_spec.sglang_plugin.fixed_weights import READS, SENTENCE, UPDATES

CHANGED = (*UPDATES, *READS, "update_weights_from_disk", "check_weights")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHANGED:  # restored afterwards
        monkeypatch.setattr(TokenizerManager, name, getattr(TokenizerManager, name))
    fixed_weights.install()


def test_updates_fail_with_a_sentence_in_sglangs_own_form() -> None:
    for name in UPDATES:
        assert asyncio.run(getattr(TokenizerManager, name)(None, None)) == (False, SENTENCE)
    assert asyncio.run(TokenizerManager.update_weights_from_disk(None, None)) == (False, SENTENCE, 0)
    assert asyncio.run(TokenizerManager.check_weights(None, None)) == (False, SENTENCE, None, None)
    assert "\n" not in SENTENCE
    assert "restart it" in SENTENCE


@pytest.mark.parametrize("name", READS)
def test_what_has_no_form_for_a_failure_raises(name: str) -> None:
    with pytest.raises(ConfigError, match="packed for the CPU"):
        asyncio.run(getattr(TokenizerManager, name)(None, None))
