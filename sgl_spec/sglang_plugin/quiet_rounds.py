"""SGLang looks for new requests and prepares outputs in every round; in most nothing arrives and nothing is sent.

After a forward has emptied the caches, finding that out takes a fifth of a millisecond: two exceptions for two empty
sockets, and an accumulator of sixty lists for no output.
"""

import functools
from typing import Any

import zmq
from sglang.srt.managers.scheduler_components import output_streamer
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.managers.scheduler_components.request_receiver import SchedulerRequestReceiver


def install() -> None:
    """Let this process's scheduler ask first whether there is anything to receive, and anything to send."""
    pull = SchedulerRequestReceiver._pull_raw_reqs
    send = SchedulerOutputStreamer._stream_output_generation

    @functools.wraps(pull)
    def pull_if_any(self: SchedulerRequestReceiver) -> list[Any] | None:
        if are_silent(self.recv_from_tokenizer, self.recv_from_rpc):
            return []
        found: list[Any] | None = pull(self)
        return found

    @functools.wraps(send)
    def send_if_any(
        self: SchedulerOutputStreamer,
        reqs: list[Any],
        return_logprob: bool,
        skip_req: Any = None,
        is_idle_batch: bool = False,
    ) -> None:
        if is_idle_batch or not all(keeps_its_output(req) for req in reqs):
            send(self, reqs, return_logprob, skip_req, is_idle_batch)

    SchedulerRequestReceiver._pull_raw_reqs = pull_if_any
    SchedulerOutputStreamer._stream_output_generation = send_if_any


def are_silent(*sockets: Any) -> bool:
    """Whether all are sockets (other ranks have none, other servers other things) and none has a message."""
    return all(isinstance(s, zmq.Socket) for s in sockets) and not zmq.zmq_poll([(s, zmq.POLLIN) for s in sockets], 0)


def keeps_its_output(req: Any) -> bool:
    """Whether SGLang would send nothing of this request yet: neither streamed nor ended, and no multiple of fifty."""
    every = output_streamer.DEFAULT_FORCE_STREAM_INTERVAL
    return not req.stream and not req.finished() and len(req.output_ids) % every != 0
