"""How statistics leave the scheduler: ``meta_info["sgl_spec"]`` per request, ``/server_info`` for the server.

SGLang gives output streamers a place for fields of their own; the tokenizer process would join such values
over chunks, which is right for per-token lists and wrong for ours, so there the last value is kept.
"""

from typing import Any

from sglang.srt.managers.scheduler_components.internal_state import SchedulerInternalStateController
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

KEY = "sgl_spec"


def install_in_scheduler(worker: Any) -> None:
    """Let this process's output streamer and internal state report what `worker` knows."""

    def additional(self: SchedulerOutputStreamer, reqs: list[Any]) -> dict[str, list[Any]]:
        return {KEY: [worker.report(req) for req in reqs]}

    SchedulerOutputStreamer.has_additional_customized_info = True
    SchedulerOutputStreamer.build_additional_customized_info = additional
    original = SchedulerInternalStateController._add_speculative

    def add_speculative(self: SchedulerInternalStateController, state: dict[str, Any]) -> None:
        original(self, state)
        state[KEY] = worker.snapshot()

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
