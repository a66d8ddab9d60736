"""SGLang's copy of a batch's fields is left out around rounds, and only there."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest


def test_prefills_keep_their_copy_and_rounds_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from sgl_spec.sglang_plugin import isolation

    copied: list[tuple[str, bool]] = []

    @contextmanager
    def original(self, batch, *, overlap):
        copied.append((batch.forward_mode.name, overlap))
        yield

    monkeypatch.setattr(Scheduler, "_forward_isolation", original)
    told: list[str] = []
    monkeypatch.setattr(isolation.replayed_penalties, "replay", lambda batch: told.append(batch.forward_mode.name))
    isolation.install()
    isolation.install()  # a second worker of the process
    for mode in (ForwardMode.DECODE, ForwardMode.EXTEND, ForwardMode.MIXED):
        with Scheduler._forward_isolation(None, SimpleNamespace(forward_mode=mode), overlap=False):
            pass
    with Scheduler._forward_isolation(None, SimpleNamespace(forward_mode=ForwardMode.DECODE), overlap=True):
        pass
    assert copied == [("EXTEND", False), ("MIXED", False), ("DECODE", True)]
    assert set(told) == {"EXTEND", "MIXED"}
