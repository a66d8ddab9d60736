"""A stopwatch around model forwards and scheduler rounds, for `sgl-spec bench overhead`; off unless asked for.

With SGL_SPEC_CLOCK=FILE the scheduler process writes one JSON line per decoding round: `batch`, `wall_ms` (from
the start of the round to the start of the next, so the scheduler's own work counts), `worker_ms` (inside our
worker) and `forward_ms` (inside forwards of target and draft, output heads included). Lines are written when the
scheduler has nothing to run: in a round, with cold caches, a line takes a tenth of a millisecond.
"""

import functools
import json
import os
import time
from pathlib import Path
from typing import Any

ENV = "SGL_SPEC_CLOCK"


class Clock:
    """Adds up the time in forwards; nested forwards count once."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.path.touch()
        self.text = ""
        self.rounds: list[tuple[int, float, float, float]] = []  # batch; seconds in all, in the worker, in forwards
        self.forward_s = 0.0
        self.depth = 0
        self.last: tuple[float, int, float] | None = None  # start, batch, seconds in the worker

    def time_forward(self, call: Any) -> Any:
        """Wrap a function whose time is that of a forward."""

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.depth -= 1
                if not self.depth:
                    self.forward_s += time.perf_counter() - started

        return timed

    def time_round(self, call: Any) -> Any:
        """Wrap the worker's entry; a prefill ends a series of rounds."""

        @functools.wraps(call)
        def timed(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            decoding = not (batch.forward_mode.is_extend() or batch.is_extend_in_batch)
            size = batch.batch_size()
            if self.last is not None and decoding and self.last[1] == size:
                self.rounds.append((size, started - self.last[0], self.last[2], self.forward_s))
            self.forward_s = 0.0
            result = call(worker, batch, *args, **kwargs)
            self.last = (started, size, time.perf_counter() - started) if decoding else None
            return result

        return timed

    def before(self, call: Any) -> Any:
        """Wrap what runs while the scheduler is idle: the rounds measured so far are written first."""

        @functools.wraps(call)
        def writing(*args: Any, **kwargs: Any) -> Any:
            self.write()
            return call(*args, **kwargs)

        return writing

    def write(self) -> None:
        """Add the rounds measured since the last time. Readers find the file as it was, or with all of them."""
        if not self.rounds:
            return
        names = ("wall_ms", "worker_ms", "forward_ms")
        for size, *seconds in self.rounds:
            times = {name: value * 1e3 for name, value in zip(names, seconds, strict=True)}
            self.text += json.dumps({"batch": size, **times}) + "\n"
        self.rounds.clear()
        new = self.path.with_suffix(".new")
        new.write_text(self.text, encoding="utf-8")
        new.replace(self.path)


@functools.cache
def install_if_asked() -> None:
    """Wrap forwards and rounds of this process if the environment names a file; once."""
    path = os.environ.get(ENV)
    if not path:
        return
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.model_runner import ModelRunner

    from sgl_spec.cpu.greedy import GreedyHead
    from sgl_spec.cpu.linear import PackedLinear
    from sgl_spec.cpu.llama import LlamaForward
    from sgl_spec.sglang_plugin.worker import SpecWorker

    clock = Clock(path)
    forwards: tuple[tuple[type, tuple[str, ...]], ...] = (
        (ModelRunner, ("forward",)),
        (LlamaForward, ("forward", "__call__", "states", "best", "greedy_chains")),
        (PackedLinear, ("forward", "__call__")),
        (GreedyHead, ("best",)),
    )
    for owner, names in forwards:
        for name in names:
            setattr(owner, name, clock.time_forward(getattr(owner, name)))
    SpecWorker.forward_batch_generation = clock.time_round(SpecWorker.forward_batch_generation)  # type: ignore[method-assign]
    Scheduler.on_idle = clock.before(Scheduler.on_idle)
