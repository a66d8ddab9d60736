"""Starting, warming and keeping a benchmark's engine, its streams, and drafts made from a target."""

import json
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from sgl_spec import models, runtime
from sgl_spec.bench import engine, stream
from sgl_spec.bench.engine import engines_kept, pair, running
from sgl_spec.bench.load import Ask, Client
from sgl_spec.bench.stream import Timed, stream_all
from sgl_spec.errors import EngineError
from tests.unit.fake_engine import FakeEngine

OUT: Any = SimpleNamespace(print=lambda text: None)


class Started:
    """A server that is not one; `log` says in which order things happen."""

    def __init__(self, log: list[Any], fail: bool = False) -> None:
        self.log, self.fail = log, fail
        self.url, self.launch = "http://up", SimpleNamespace(environment={"OMP_NUM_THREADS": "2"})

    def __call__(self, target: str, draft: str | None, **server_args: Any) -> "Started":
        self.log.append(("start", target, draft, server_args))
        return self

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append("stop")


@pytest.fixture
def log(monkeypatch):
    events: list[Any] = []

    class Quiet(Client):
        def ask(self, prompts, options, how, key=None, **fields):
            events.append(("ask", options["namespace"], options.get("speculate", True), how.max_new_tokens))

    monkeypatch.setattr(engine, "Client", Quiet)
    monkeypatch.setattr(runtime, "Runtime", Started(events))
    return events


WARM = [("ask", "warm", False, 24), ("ask", "warm", True, 24), ("ask", "warm", True, 24)]


def test_an_engine_is_warmed_before_it_is_handed_out_and_stopped_after(log):
    said = []
    with running("a/target", "b/draft", SimpleNamespace(print=said.append), draft_cache=False) as one:
        assert log == [("start", "a/target", "b/draft", {"num_speculative_tokens": 10, "draft_cache": False}), *WARM]
        assert (one.target, one.threads, one.runtime.url) == ("a/target", 2, "http://up")
        assert not one.client.http.is_closed
    assert log[-1] == "stop"
    assert one.client.http.is_closed
    assert "target with draft, 2 thread(s)" in said[0]
    with pytest.raises(KeyError), running("t", None, OUT, num_speculative_tokens=3):
        raise KeyError
    assert log[-5:] == [("start", "t", None, {"num_speculative_tokens": 3}), *WARM, "stop"]


def test_kept_engines_are_started_once_and_stopped_at_the_end(log):
    with engines_kept():
        with running("t", "d", OUT) as first:
            pass
        with running("t", "d", OUT) as again, running("t", "d", OUT, draft_cache=False) as other:
            assert again is first
            assert other is not first
        assert "stop" not in log
    assert log[-2:] == ["stop", "stop"]
    assert len([event for event in log if event[0] == "start"]) == 2
    with running("t", "d", OUT) as later:
        assert later is not first
    assert log[-1] == "stop"


def test_without_models_it_is_the_demo_pair(monkeypatch, tmp_path):
    monkeypatch.setattr(models, "fetch_demo", lambda: (tmp_path / "target", tmp_path / "draft"))
    assert pair(None, None) == (str(tmp_path / "target"), str(tmp_path / "draft"))
    assert pair(tmp_path / "a", tmp_path / "b") == (str(tmp_path / "a"), str(tmp_path / "b"))


def test_streams_are_timed_and_at_most_so_many_under_way():
    under_way, most, lock = set(), [], threading.Lock()

    def generate(handler, body):
        with lock:
            under_way.add(body["text"])
            most.append(len(under_way))
        parts = [{"meta_info": {"completion_tokens": n}, "output_ids": list(range(n))} for n in (1, 3)]
        with lock:
            under_way.remove(body["text"])  # the client may send the next one from here on
        fake.stream(handler, [{"meta_info": {}}, *parts])

    with FakeEngine(delay_s=0.01) as fake:
        fake.generate = generate
        answers, seconds = stream_all(fake.url, list("abcdef"), {"program": "p"}, Ask(3), 2, "key")
    assert [(answer.ids, answer.meta["completion_tokens"]) for answer in answers] == [((0, 1, 2), 3)] * 6
    assert all(0 < answer.first_s <= answer.last_s <= seconds for answer in answers)
    assert max(most) <= 2
    assert {(body["extra_key"], body["stream"]) for body in fake.bodies} == {("key", True)}
    assert fake.bodies[0]["sampling_params"]["custom_params"] == {"sgl_spec": {"program": "p"}}
    assert sorted(body["text"] for body in fake.bodies) == list("abcdef")


def test_seconds_per_token_leave_the_first_one_out():
    assert Timed(1.0, 3.0, (1, 2, 3), {}).per_token_s == 1.0
    assert Timed(1.0, 1.0, (1,), {}).per_token_s == 0.0


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda _: httpx.Response(400, text="too long"), "refused a request of the benchmark: b'too long'"),
        (lambda _: httpx.Response(200, text='data: {"error": "out of memory"}\n\n'), "failed during an answer: out of"),
    ],
)
def test_streams_that_fail_are_one_sentence(monkeypatch, answer, sentence):
    real = httpx.Client
    monkeypatch.setattr(stream.httpx, "Client", lambda **how: real(transport=httpx.MockTransport(answer), **how))
    with pytest.raises(EngineError, match=sentence):
        stream_all("http://fake", ["a"], {}, Ask(3), 1, "key")


def test_a_server_that_is_gone_is_one_sentence():
    with FakeEngine() as fake:
        url = fake.url
    with pytest.raises(EngineError, match=r"stopped answering \(ConnectError"):
        stream_all(url, ["a"], {}, Ask(3), 1, "key")
    client = Client(url)
    with pytest.raises(EngineError, match=r"stopped answering \(ConnectError"):
        client.ask_ids([[1, 2]], None, Ask(3))


def test_prompts_of_token_ids():
    seen = []

    def answer(request):
        seen.append(json.loads(request.content))
        return httpx.Response(200, json=[{"text": "x", "output_ids": [7], "meta_info": {}}] * 2)

    client = Client("http://fake")
    client.http = httpx.Client(base_url="http://fake", transport=httpx.MockTransport(answer))
    found = client.ask_ids([[1, 2], [3]], None, Ask(4, 0.5, sampling=(("top_p", 0.9),)))
    assert (found.tokens, found.ids) == (2, [[7], [7]])
    params = {"max_new_tokens": 4, "temperature": 0.5, "ignore_eos": False, "top_p": 0.9}
    assert seen == [{"input_ids": [[1, 2], [3]], "sampling_params": [params, params]}]
