"""How statistics leave the scheduler: per request in ``meta_info["sgl_spec"]``, for the server in ``/server_info``
and, with ``--enable-metrics``, in ``/metrics``.

SGLang gives output streamers a place for fields of their own; the tokenizer process would join such values
over chunks, which is right for per-token lists and wrong for ours, so there the last value is kept.
"""

import time
from typing import Any

from sglang.srt.managers.scheduler_components.internal_state import SchedulerInternalStateController
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.runtime_context import get_observability, get_serving

from sgl_spec.sglang_plugin.metrics import Counters
from sgl_spec.sglang_plugin.requests import is_health_check, options_of
from sgl_spec.sglang_plugin.slowest import Slowest

KEY = "sgl_spec"


class Reporter:
    """Passes on what `worker` knows: a request's statistics with its output, the server's when asked."""

    def __init__(self, worker: Any, counters: Counters | None) -> None:
        self.worker = worker
        self.counters = counters
        self.slowest = Slowest()

    def of_requests(self, reqs: list[Any]) -> list[dict[str, Any] | None]:
        """Return one report for each request that has output now."""
        reports = [self.worker.report(req) for req in reqs]
        ended = [req for req in reqs if req.finished() and not is_health_check(req)]
        for req in ended:
            seconds = time.perf_counter() - req.time_stats.wait_queue_entry_time
            facts = {"rid": req.rid, "program": options_of(req).program, "tokens": len(req.output_ids)}
            self.slowest.add(seconds, facts)
        if self.counters is not None and (ended or self.counters.due()):
            self.counters.update(self.worker.snapshot()["stats"])
        return reports

    def of_server(self) -> dict[str, Any]:
        """Return the server's statistics, JSON-ready."""
        return {**self.worker.snapshot(), "slowest_requests": self.slowest.as_list()}


def install_in_scheduler(worker: Any) -> None:
    """Let this process's output streamer and internal state report what `worker` knows."""
    metrics = get_observability().enable_metrics
    reporter = Reporter(worker, Counters(get_serving().served_model_name) if metrics else None)

    def additional(self: SchedulerOutputStreamer, reqs: list[Any]) -> dict[str, list[Any]]:
        return {KEY: reporter.of_requests(reqs)}

    SchedulerOutputStreamer.has_additional_customized_info = True
    SchedulerOutputStreamer.build_additional_customized_info = additional
    original = SchedulerInternalStateController._add_speculative

    def add_speculative(self: SchedulerInternalStateController, state: dict[str, Any]) -> None:
        original(self, state)
        state[KEY] = reporter.of_server()

    SchedulerInternalStateController._add_speculative = add_speculative


def keep_last_value(original: Any, meta_info: dict, state: Any, key: str, values: Any) -> None:
    """Around ``TokenizerManager._accumulate_request_meta_info``: our field is one object, not a list."""
    if key == KEY:
        if values is not None:
            meta_info[KEY] = values
        return
    original(meta_info, state, key, values)


def install_in_tokenizer() -> None:
    """Let the tokenizer process pass our field on."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    original = TokenizerManager._accumulate_request_meta_info

    def accumulate(meta_info: dict, state: Any, key: str, values: Any) -> None:
        keep_last_value(original, meta_info, state, key, values)

    TokenizerManager._accumulate_request_meta_info = staticmethod(accumulate)
