"""`bench peers` with sides that are not engines: what is started, skipped and compared."""

import json
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_spec import serve, server_process
from sgl_spec.bench.load import Answer
from sgl_spec.bench.peers import command, sglang
from sgl_spec.bench.peers.environments import Peer
from sgl_spec.bench.peers.sglang import STANDALONE, Ours, stock
from sgl_spec.bench.peers.side import Call
from sgl_spec.errors import ConfigError, EngineError
from tests.unit.bench_engine import Machine, TimedClient


class Other:
    """A peer that takes 100 ms per token; `failed` says which of its modes is not there."""

    def __init__(self, engine: str, failed: dict[str, str]) -> None:
        self.engine, self.failed, self.modes = engine, failed, {"plain": [1, 4]}

    def __enter__(self) -> "Other":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, mode: str, texts: list[str], tokens: int) -> Call:
        return Call(tokens * len(texts), 0.1 * tokens * len(texts), ["x"] * len(texts))


@pytest.fixture
def peers(monkeypatch, tmp_path):
    """`bench peers` with two peers of ours; `state` says what happens to them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    state = SimpleNamespace(installed=[], started=[], broken=set(), missing=set())

    class Fake(Peer):
        def missing(self):
            return f"{self.name} is not there." if self.name in state.missing else None

        def install(self):
            state.installed.append(self.name)

        def start(self, job):
            if self.name in state.broken:
                raise EngineError(f"{self.name} failed: no kernel")
            state.started.append((self.name, job))
            return Other(self.name, {"n-gram": "too new"} if self.name == "vllm" else {})

    monkeypatch.setattr(command, "PEERS", {name: Fake(name, "run.py") for name in ("llama.cpp", "vllm")})
    monkeypatch.setattr(command, "add_f32_files", lambda job, folder: job | {"gguf": folder.name})
    monkeypatch.setattr(command, "stock", lambda job: Other("SGLang", {}))
    monkeypatch.setattr(command, "pair", lambda target, draft: ("target", "draft"))
    monkeypatch.setattr(command, "chat_prompts", lambda model, task, count: [f"{task} {i}" for i in range(count)])
    client = TimedClient(lambda asked: 0.05 if asked.options.get("speculate", True) else 0.08)
    monkeypatch.setattr(command, "running", Machine(client))
    return state


def test_each_peer_is_compared_and_the_least_ratio_is_the_result(peers, capsys):
    command.peers(quick=True, json_output=True)
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert (result["name"], result["ratio"]) == ("peers", 2.0)
    assert result["provenance"]["threads"] == 1
    assert {row["engine"] for row in result["rows"]} == {"sgl-spec", "SGLang", "llama.cpp", "vllm"}
    assert [name for name, _ in peers.started] == ["llama.cpp", "vllm"]
    assert [job.get("gguf") for _, job in peers.started] == ["llama.cpp", None]
    assert "vllm, n-gram: skipped, it failed (too new)" in said.err
    assert peers.installed == []


def test_missing_and_broken_peers_are_skipped_with_a_sentence(peers, capsys):
    peers.missing, peers.broken = {"llama.cpp"}, {"vllm"}
    command.peers(quick=True)
    said = capsys.readouterr().out
    assert "llama.cpp is not there." in said
    assert "vllm is skipped: vllm failed: no kernel" in said
    with pytest.raises(EngineError, match="no peer ran: install one with --install, or choose --only sglang"):
        command.peers(only=["vllm", "llama.cpp"], quick=True)


def test_chosen_peers_are_installed_and_name_the_result(peers, capsys):
    command.peers(only=["vllm", "sglang"], install=True, quick=True, json_output=True)
    assert json.loads(capsys.readouterr().out)["name"] == "peers-sglang-vllm"
    assert peers.installed == ["vllm"]
    with pytest.raises(ConfigError, match="there is no peer 'vlm'"):
        command.peers(only=["vlm"])


def test_each_of_our_modes_is_cold(peers):
    client = TimedClient(lambda asked: 0.1)
    ours = Ours(client, "vllm", {})
    assert ours.ask("draft model", ["a", "b"], 5) == Call(10, 1.0, ["x", "x"])
    ours.ask("plain", ["a"], 5)
    first, second = client.calls
    assert first.options == {
        "namespace": "vllm draft model 2",
        "program": "vllm draft model 2",
        "cache": False,
        "prompt_lookup": False,
    }
    assert (first.key, second.key) == ("vllm draft model 2", "vllm plain 1")
    assert (second.options["speculate"], second.how.ignore_eos) == (False, True)


@dataclass
class Launch:
    server_args: dict[str, Any]
    environment: dict[str, str]
    url: str = "http://up"


def test_stock_sglang_runs_on_pytorch_plainly_and_with_its_own_guesses(monkeypatch):
    launched, asked = [], []

    @contextmanager
    def server(launch):
        launched.append(launch)
        yield SimpleNamespace(wait=lambda: asked.append("wait"))

    class Client:
        def __init__(self, url):
            self.http = SimpleNamespace(close=lambda: asked.append("close"))

        def ask(self, texts, options, how, key):
            asked.append((len(texts), options, how.max_new_tokens, key))
            return Answer(0.5, [{}], [[1] * 4], ["t"])

    monkeypatch.setattr(serve, "plan_launch", lambda values: Launch(dict(values), {"A": "1"}))
    monkeypatch.setattr(server_process, "ServerProcess", server)
    monkeypatch.setattr(sglang, "Client", Client)
    with stock({"target": "T", "draft": "D", "batch": ["x"] * 4}) as side:
        assert side.modes == {"plain": [1, 4], STANDALONE: [1, 4]}
        assert asked == ["wait", (2, None, 24, "warm")] * 2
        assert side.ask("plain", ["a"], 4) == Call(4, 0.5, ["t"])
    assert asked[-2:] == ["close", "close"]
    plain, guessing = launched
    assert {one.environment[sglang.CHOICE] for one in launched} == {"torch"}
    assert plain.environment["A"] == "1"
    assert "speculative_algorithm" not in plain.server_args
    assert plain.server_args["draft_cache"] is plain.server_args["prediction"] is False
    assert guessing.server_args["speculative_algorithm"] == "STANDALONE"
    assert guessing.server_args["speculative_draft_model_path"] == "D"
    assert (guessing.server_args["speculative_num_steps"], guessing.server_args["speculative_num_draft_tokens"]) == (
        3,
        4,
    )
