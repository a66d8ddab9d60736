"""SGLang's work for requests that arrive and outputs that leave is skipped exactly where it would find none."""

from types import SimpleNamespace

import pytest
import zmq


@pytest.fixture
def called(monkeypatch):
    """What of SGLang's was called, with `quiet_rounds` in front of it."""
    from sgl_spec.sglang_plugin import quiet_rounds

    calls = []

    def pull(self):
        calls.append("pull")
        return ["a request"]

    def send(self, reqs, return_logprob, skip_req=None, is_idle_batch=False):
        calls.append((reqs, return_logprob, skip_req, is_idle_batch))

    monkeypatch.setattr(quiet_rounds.SchedulerRequestReceiver, "_pull_raw_reqs", pull)
    monkeypatch.setattr(quiet_rounds.SchedulerOutputStreamer, "_stream_output_generation", send)
    quiet_rounds.install()
    return calls


@pytest.fixture
def channel(tmp_path):
    """Makes pairs of sockets: (sends, receives)."""
    with zmq.Context() as context:
        made = []

        def pair(name):
            receives, sends = context.socket(zmq.PULL), context.socket(zmq.PUSH)
            receives.bind(f"ipc://{tmp_path}/{name}")
            sends.connect(f"ipc://{tmp_path}/{name}")
            made.extend([receives, sends])
            return sends, receives

        yield pair
        for socket in made:
            socket.close(linger=0)


@pytest.mark.parametrize("which", [0, 1])
def test_a_message_on_either_socket_is_pulled(which, called, channel):
    from sgl_spec.sglang_plugin.quiet_rounds import SchedulerRequestReceiver

    pairs = [channel("tokenizer"), channel("rpc")]
    receiver = SimpleNamespace(recv_from_tokenizer=pairs[0][1], recv_from_rpc=pairs[1][1])
    assert SchedulerRequestReceiver._pull_raw_reqs(receiver) == []
    assert called == []
    pairs[which][0].send(b"one")
    assert pairs[which][1].poll(5000)
    for _ in range(2):  # it is there until it is received
        assert SchedulerRequestReceiver._pull_raw_reqs(receiver) == ["a request"]
    pairs[which][1].recv()
    assert SchedulerRequestReceiver._pull_raw_reqs(receiver) == []
    assert called == ["pull"] * 2


def test_what_is_no_socket_is_left_to_sglang(called, channel):
    from sgl_spec.sglang_plugin.quiet_rounds import SchedulerRequestReceiver

    _, silent = channel("rpc")
    for sockets in ((None, None), (object(), silent), (silent, None)):  # another rank; a server in Rust
        receiver = SimpleNamespace(recv_from_tokenizer=sockets[0], recv_from_rpc=sockets[1])
        assert SchedulerRequestReceiver._pull_raw_reqs(receiver) == ["a request"]
    assert called == ["pull"] * 3


class Sent(Exception):  # noqa: N818 - no error
    pass


class Req(SimpleNamespace):
    """As far as SGLang asks before it decides to send; its id is the first thing that it sends."""

    @property
    def rid(self):
        raise Sent

    def finished(self):
        return self.finished_reason is not None

    def check_match_stop_str_prefix(self):
        return False


def request(tokens, stream=False, finished=None):
    return Req(
        output_ids=[7] * tokens, stream=stream, finished_reason=finished, beam_group=None, finished_output=False,
        finished_len=None, send_token_offset=0, send_output_token_logprobs_offset=0,
        sampling_params=SimpleNamespace(stream_interval=None),
    )  # fmt: skip


def sglang_sends(req) -> bool:
    from sglang.srt.managers.scheduler_components.output_streamer import (
        DEFAULT_FORCE_STREAM_INTERVAL,
        _GenerationStreamAccumulator,
    )

    rule = SimpleNamespace(
        default_stream_interval=1, default_force_stream_interval=DEFAULT_FORCE_STREAM_INTERVAL, rids=[]
    )
    try:
        _GenerationStreamAccumulator.accept(rule, req=req)
    except Sent:
        return True
    return False


@pytest.mark.parametrize("tokens", [*range(1, 5), 49, 50, 51, 99, 100, 101, 150])
@pytest.mark.parametrize(("stream", "finished"), [(False, None), (True, None), (False, "stop"), (True, "stop")])
def test_an_output_stays_where_sglang_would_keep_it(tokens, stream, finished):
    from sgl_spec.sglang_plugin.quiet_rounds import keeps_its_output

    kept = keeps_its_output(request(tokens, stream, finished))
    assert kept == (not sglang_sends(request(tokens, stream, finished)))


@pytest.mark.parametrize(
    ("reqs", "idle", "sent"),
    [
        ([request(3), request(7)], False, False),
        ([request(3), request(50)], False, True),
        ([request(3, stream=True), request(7)], False, True),
        ([request(3), request(7, finished="length")], False, True),
        ([], True, True),
    ],
)
def test_one_output_is_enough(reqs, idle, sent, called):
    from sgl_spec.sglang_plugin.quiet_rounds import SchedulerOutputStreamer

    SchedulerOutputStreamer._stream_output_generation(None, reqs, True, is_idle_batch=idle)
    assert called == ([(reqs, True, None, idle)] if sent else [])
