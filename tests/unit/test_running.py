"""What a request's output says of it: while it streams, at its end, and where it never had a round."""

from types import SimpleNamespace
from typing import Any

import pytest

from sgl_spec.config import SpecConfig
from sgl_spec.control import make_controller
from sgl_spec.control.base import RequestRound
from sgl_spec.draft.sources import HostSources

running = pytest.importorskip("sgl_spec.sglang_plugin.running")


class Req:
    """The parts of SGLang's request that are read."""

    def __init__(self, rid: str, options: Any = None, stream: bool = False) -> None:
        self.rid, self.stream, self.done = rid, stream, False
        self.origin_input_ids, self.output_ids, self.finished_len = [1, 2], [7], None
        self.custom_logit_processor = self.tokenizer = self.eos_token_ids = None
        self.sampling_params = SimpleNamespace(
            custom_params={"sgl_spec": options} if options else None, top_k=1, frequency_penalty=0.0,
            presence_penalty=0.0, repetition_penalty=1.0, min_new_tokens=0, stop_token_ids=None,
        )  # fmt: skip

    def finished(self) -> bool:
        return self.done


@pytest.fixture
def requests() -> Any:
    config = SpecConfig(model_path="target")
    return running.Running(config, HostSources(None), make_controller(config), tokenizer=None)


def test_a_stream_has_its_counts_so_far_and_the_others_wait_for_the_end(requests: Any) -> None:
    stream, whole = Req("a", stream=True), Req("b")
    assert requests.report(stream)["num_draft_tokens"] == 0
    for req in (stream, whole):
        requests.count(RequestRound(req.rid, 3, 2, ("cache",) * 3), requests.track(req))
    assert requests.report(stream)["num_accepted_draft_tokens"] == 2
    assert requests.report(whole) is None
    stream.done = whole.done = True
    assert requests.report(stream)["num_draft_tokens"] == requests.report(whole)["num_draft_tokens"] == 3
    assert len(requests) == 0
    assert requests.stats.total.requests == 2


def test_a_prediction_is_counted_even_if_the_first_token_is_the_last(requests: Any) -> None:
    req = Req("a", {"prediction": (7, 8, 9)})
    req.done = True
    report = requests.report(req)
    assert (report["accepted_prediction_tokens"], report["rejected_prediction_tokens"]) == (1, 2)
    assert "accepted_prediction_tokens" not in requests.report(done(Req("b")))
    assert requests.stats.total.requests == 2


def test_what_was_asked_in_vain_is_said_at_the_end(requests: Any) -> None:
    assert requests.report(done(Req("a", {"num_speculative_tokens": 5})))["warnings"] == []
    report = requests.report(done(Req("b", {"num_speculative_tokens": 9, "controller": "fixed"})))
    assert "is cut to 5" in report["warnings"][0]


def test_a_new_request_does_not_inherit_the_counts_of_an_aborted_one(requests: Any) -> None:
    old = Req("a", stream=True)
    requests.count(RequestRound("a", 3, 2, ("cache",) * 3), requests.track(old))
    assert requests.report(Req("a", stream=True))["num_draft_tokens"] == 0


def test_health_checks_are_no_requests(requests: Any) -> None:
    requests.report(done(Req("HEALTH_CHECK_1")))
    assert requests.stats.total.requests == 0


def done(req: Req) -> Req:
    req.done = True
    return req
