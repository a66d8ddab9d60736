"""The stopwatch of bench overhead on fake rounds, and the rows made of what it writes."""

import json
from types import SimpleNamespace

from sgl_spec.bench import overhead
from sgl_spec.bench.overhead import CLOCK, _row, stopwatch
from sgl_spec.bench.verify_cost import ROWS, report
from sgl_spec.console import people
from sgl_spec.sglang_plugin.clock import ENV, Clock


def batch(size: int, extend: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        forward_mode=SimpleNamespace(is_extend=lambda: extend), is_extend_in_batch=False, batch_size=lambda: size
    )


def test_rounds_of_one_size_are_written_and_a_prefill_ends_them(tmp_path):
    clock = Clock(str(tmp_path / "rounds"))
    inner = clock.time_forward(lambda: None)
    outer = clock.time_forward(inner)
    run = clock.time_round(lambda worker, batch: outer())
    for size, extend in ((1, True), (1, False), (1, False), (2, False), (2, False), (2, True), (2, False)):
        run(None, batch(size, extend))
    idle = clock.before(lambda: None)
    assert (tmp_path / "rounds").read_text() == ""  # nothing is written in a round
    idle()
    run(None, batch(2))
    before = (tmp_path / "rounds").open()
    idle()
    assert before.read().count("\n") == 2  # who reads it meanwhile reads whole lines
    before.close()
    lines = [json.loads(line) for line in (tmp_path / "rounds").read_text().splitlines()]
    assert [line["batch"] for line in lines] == [1, 2, 2]
    assert all(0 < line["forward_ms"] <= line["worker_ms"] <= line["wall_ms"] for line in lines)
    assert clock.depth == 0


def test_the_bench_waits_until_the_scheduler_writes(tmp_path, monkeypatch):
    file = tmp_path / "rounds"
    file.write_text('{"batch": 1}\n')
    monkeypatch.setattr(overhead.time, "sleep", lambda _: file.write_text('{"batch": 1}\n{"batch": 8}\n'))
    assert overhead._further(file, 0) == [{"batch": 1}]
    assert overhead._further(file, 1) == [{"batch": 8}]
    monkeypatch.setattr(overhead, "IDLE_S", 0.0)
    assert overhead._further(file, 2) == []


def test_the_bench_and_the_plugin_mean_the_same_variable(monkeypatch):
    monkeypatch.delenv(ENV, raising=False)
    assert CLOCK == ENV
    with stopwatch() as file:
        assert file.parent.is_dir()
    assert not file.parent.exists()


def test_a_row_splits_a_round():
    row = _row(8, "plain", [{"wall_ms": 10.0, "worker_ms": 9.0, "forward_ms": 8.0}] * 2)
    assert row == {
        "batch": 8,
        "arm": "plain",
        "rounds": 2,
        "round_ms": 10.0,
        "forwards_ms": 8.0,
        "worker_outside_ms": 1.0,
        "scheduler_ms": 1.0,
        "outside_forwards": 0.2,
    }


def test_verify_cost_is_the_median_over_series(capsys):
    series = [{m: 10.0 + (m - 1) * step for m in ROWS} for step in (0.5, 1.0, 1.5)]
    report(people(True), series, [{m: 20.0 * m for m in ROWS}] * 3, 1, save=False, json_output=True)
    result = json.loads(capsys.readouterr().out)
    assert result["ratio"] == 1.4
    assert result["spread"] == [1.2, 1.6]
    assert result["rows"][8]["torch_to_V0"] == 9.0
