"""The benchmarks that look at more than one answer's time: rounds, streams, advice; and several in a row."""

import json
import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from sgl_spec.advise.measure import Measured
from sgl_spec.bench import advice, concurrency, every, overhead
from sgl_spec.bench.stream import Timed
from sgl_spec.errors import ConfigError
from tests.unit.bench_engine import TimedClient, arm_of, paced, run_bench


@pytest.fixture
def bench(monkeypatch, capsys):
    return partial(run_bench, monkeypatch, capsys)


def test_overhead_is_the_larger_share_of_the_default(bench, monkeypatch):
    count = [2]

    def file():
        return Path(os.environ[overhead.CLOCK])

    def pace(asked):
        inside = {"plain": 7.0, "fixed K=4": 8.0, "default": 9.0 if len(asked.texts) == 1 else 8.5}[arm_of(asked)]
        line = {"wall_ms": 10.0, "worker_ms": 9.5, "forward_ms": inside}
        with file().open("a") as out:
            for size in (len(asked.texts),) * count[0] + (5,):  # a batch that runs out passes other sizes
                out.write(json.dumps({"batch": size, **line}) + "\n")
        return 0.01

    client = TimedClient(pace)
    client.on_start = lambda: file().write_text(json.dumps({"batch": 1, "wall_ms": 1e9}) + "\n")  # the warm-up
    result, _ = bench(overhead, client, prompts=2, max_new_tokens=8)
    assert result["ratio"] == 0.15
    shares = {(row["batch"], row["arm"]): row["outside_forwards"] for row in result["rows"]}
    assert shares == {
        (1, "plain"): 0.3, (1, "fixed K=4"): 0.2, (1, "default"): 0.1,
        (8, "plain"): 0.3, (8, "fixed K=4"): 0.2, (8, "default"): 0.15,
    }  # fmt: skip
    assert {row["rounds"] for row in result["rows"]} == {4}
    assert {len(call.texts) for call in client.calls} == {1, 8}
    quick, _ = bench(overhead, client, quick=True)
    assert {row["rounds"] for row in quick["rows"]} == {2}
    assert client.calls[-1].how.max_new_tokens == 12
    count[0] = 1
    assert bench(overhead, client, quick=True)[0]["spread"] == [0.15, 0.15]
    streams = []

    def stream_all(url, texts, options, how, at_once, key):
        assert at_once == len(texts)
        streams.append(key)
        client.ask(texts, options, how, key)

    monkeypatch.setattr(overhead, "stream_all", stream_all)
    asked = len(client.calls)
    assert bench(overhead, client, quick=True, streamed=True)[0]["ratio"] == 0.15
    assert len(client.calls) - asked == len(streams) == 6


def test_load_at_several_levels(bench, monkeypatch):
    asked = []

    def stream_all(url, texts, options, how, at_once, key):
        asked.append((url, tuple(texts), at_once, key, how.max_new_tokens))
        plain = options.get("speculate") is False
        spec = {} if plain else {"num_draft_tokens": 10, "num_accepted_draft_tokens": 7}
        meta = {"completion_tokens": 11, "sgl_spec": spec}
        pace = 0.1 if plain else 0.05
        return [Timed(1.0 + i, 1.0 + i + 10 * pace, tuple(range(11)), meta) for i in range(len(texts))], 110 * pace

    monkeypatch.setattr(concurrency, "stream_all", stream_all)
    result, _ = bench(concurrency, paced(), at_once=[1, 5])
    assert (result["ratio"], result["spread"]) == (2.0, [2.0, 2.0])
    assert [(at_once, len(texts)) for _, texts, at_once, _, _ in asked] == [(1, 6), (1, 6), (5, 10), (5, 10)]
    assert [key for *_, key, _ in asked] == ["load 0 default", "load 0 plain", "load 1 plain", "load 1 default"]
    assert not set(asked[0][1]) & set(asked[2][1])  # no prompt is repeated
    assert asked[0][1] == asked[1][1]
    assert result["rows"][1] == {
        "at_once": 1,
        "arm": "default",
        "requests": 6,
        "tokens_per_s": 12.0,
        "latency_mean_s": 4.0,
        "latency_p50_s": 4.0,
        "latency_p95_s": 6.25,
        "latency_p99_s": 6.45,
        "first_token_p50_s": 3.5,
        "first_token_p95_s": 5.75,
        "per_token_ms": 50.0,
        "acceptance_rate": 0.7,
        "same_ids": True,
    }
    assert result["rows"][0]["acceptance_rate"] is None
    bench(concurrency, paced(), quick=True)
    assert [(at_once, tokens) for _, _, at_once, _, tokens in asked[4:]] == [(1, 12), (1, 12), (2, 12), (2, 12)]


def test_advice_against_a_later_sweep(bench, monkeypatch):
    """The adaptive policy is advised at 1.2 times plain; later K=4 is a little faster. Of a bad draft, none."""
    speeds = {"draft": {"throughput": 12.0, "K=4": 12.5}, "target": {"throughput": 20.0}, "random": {}}
    machine_runs = []

    def measure(http, texts, tried, tokens):
        assert http == "the connection"
        machine_runs.append((len(tried), len(texts), tokens))
        draft = list(speeds)[(len(machine_runs) - 1) // 2 % 3]
        return [
            Measured(policy=policy, tokens=100, seconds=100 / speeds[draft].get(policy.name, 9.0 if at else 10.0),
                     spread=0.0, proposed=50 * bool(at), accepted=10 + at, ids_equal_plain=True)
            for at, policy in enumerate(tried)
        ]  # fmt: skip

    monkeypatch.setattr(advice, "measure", measure)
    monkeypatch.setattr(advice, "random_draft", lambda target, folder: "random")
    result, started = bench(advice, paced(), prompts=3)
    assert [draft for _, draft, _ in started] == ["draft", "target", "random"]
    assert (result["ratio"], result["spread"]) == (0.96, [0.96, 1.0])
    assert [row["advised"] for row in result["rows"]] == ["throughput", "throughput", "do not speculate"]
    assert result["rows"][0] == {
        "draft": "the pair",
        "advised": "throughput",
        "best_of_sweep": "K=4",
        "advised_tokens_per_s": 12.0,
        "best_tokens_per_s": 12.5,
        "advised_to_best": 0.96,
        "plain_tokens_per_s": 10.0,
        "acceptance_rate": [0.22, 0.38],
        "same_ids": True,
    }
    assert machine_runs == [(6, 6, 40), (10, 6, 40)] * 3
    machine_runs.clear()
    quick, started = bench(advice, paced(), quick=True)
    assert len(started) == len(quick["rows"]) == 1
    assert machine_runs == [(6, 2, 8), (10, 2, 8)]


def test_several_benchmarks_share_what_is_kept(monkeypatch):
    asked, kept = [], []

    def block():
        kept.append("open")
        return nullcontext()

    monkeypatch.setattr(every, "engines_kept", block)
    for name in every.BENCHES:
        monkeypatch.setitem(every.BENCHES, name, lambda name=name, **how: asked.append((name, how)))
    every.every(["prefix", "speedup"], quick=True, save=False)
    assert asked == [("prefix", {"quick": True, "save": False}), ("speedup", {"quick": True, "save": False})]
    every.every(None, save=True)
    assert [name for name, _ in asked[2:]] == list(every.BENCHES)
    assert kept == ["open", "open"]
    with pytest.raises(ConfigError, match=r"no benchmark 'prefx' \(did you mean 'prefix'\?\): use speedup, adaptive"):
        every.every(["speedup", "prefx"])
    assert len(asked) == 2 + len(every.BENCHES)  # nothing ran before the wrong name was seen
