"""SGLang copies a batch's 99 fields before a speculative forward and puts them back: a round's changes stay."""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sglang.srt.managers.scheduler import Scheduler

from sgl_spec.sglang_plugin import replayed_penalties


def install() -> None:
    """Let this process's scheduler run `SpecWorker`'s rounds as they are; prefills keep SGLang's isolation.

    That is where the penalties of a prefill are laid down, so its penalizers are told first what was said.
    """
    original = Scheduler._forward_isolation

    @functools.wraps(original)
    def isolation(self: Scheduler, batch: Any, *, overlap: bool) -> AbstractContextManager[None]:
        if batch.forward_mode.is_decode():
            if not overlap:
                return nullcontext()
        else:
            replayed_penalties.replay(batch)
        kept: AbstractContextManager[None] = original(self, batch, overlap=overlap)
        return kept

    Scheduler._forward_isolation = isolation
