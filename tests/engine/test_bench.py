"""Every benchmark, the certificate and the doctor on the real engine, in their least size."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sgl_spec.bench import engine
from sgl_spec.bench.every import BENCHES
from sgl_spec.bench.load import Client
from sgl_spec.cli import main
from sgl_spec.models import demo_draft, demo_target

pytestmark = pytest.mark.engine


@pytest.fixture
def on_demo_server(monkeypatch, demo_server) -> None:
    """Benchmarks ask the shared server instead of starting their own."""

    @contextmanager
    def shared(target, draft, out, server_args) -> Iterator[engine.Engine]:
        client = Client(demo_server.url)
        yield engine.Engine(client, str(demo_target()), 1, demo_server.runtime)
        client.http.close()

    monkeypatch.setattr(engine, "_started", shared)


@pytest.mark.parametrize("name", BENCHES)
def test_a_benchmark(name, on_demo_server, capsys):
    assert main(["bench", name, "--quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["name"] == name
    assert result["spread"][0] <= result["ratio"] <= result["spread"][1]
    assert result["provenance"]["versions"]["sglang"] == "0.5.23"
    assert all(row["same_ids"] is not False for row in result["rows"] if "same_ids" in row)


def test_the_demo_pair_is_certified(on_demo_server, capsys, tmp_path):
    report = tmp_path / "pair"
    command = ["certify", str(demo_target()), str(demo_draft()), "--quick", "--out", str(report), "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["passed"]
    assert {test["temperature"] for test in document["law"]} == {0.7, 1.3}
    assert all(test["proposed"] for test in document["law"])
    off = [check["name"] for check in document["options"] if check["why_not"]]
    assert off == ["speculate=False"]
    assert report.with_suffix(".md").read_text().endswith("|\n")


def test_the_doctor_looks_into_a_server(demo_server, capsys):
    assert main(["doctor", demo_server.url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["server"]["arguments"]["speculative_algorithm"] == "SGL_SPEC"
    assert document["server"]["config"]["controller"] == "throughput"
    assert document["reason"]


@pytest.mark.long
def test_the_stopwatch_counts_rounds(capsys):
    assert main(["bench", "overhead", "--quick", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert {row["batch"] for row in rows} == {1, 8}
    for row in rows:
        assert row["rounds"] > 0
        assert 0.0 < row["forwards_ms"] < row["round_ms"]
