"""SGLang copies a batch's 99 fields before a speculative forward and puts them back: a round's changes stay."""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sglang.srt.managers.scheduler import Scheduler


def install() -> None:
    """Let this process's scheduler run `SpecWorker`'s rounds as they are; prefills keep SGLang's isolation."""
    original = Scheduler._forward_isolation

    @functools.wraps(original)
    def isolation(self: Scheduler, batch: Any, *, overlap: bool) -> AbstractContextManager[None]:
        if batch.forward_mode.is_decode() and not overlap:
            return nullcontext()
        kept: AbstractContextManager[None] = original(self, batch, overlap=overlap)
        return kept

    Scheduler._forward_isolation = isolation
