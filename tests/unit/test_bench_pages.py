"""How a benchmark ends and what its page shows: files, goals in rows, plots, where it was measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sgl_spec.bench import options, plots, provenance, report
from sgl_spec.bench.options import WIDE, finish
from sgl_spec.bench.report import markdown
from sgl_spec.bench.result import RESULTS, Result, read_results
from sgl_spec.console import people
from sgl_spec.errors import ConfigError, EngineError


def result(name="speedup", rows=()):
    return Result(
        name=name, meaning="a / b", ratio=1.5, spread=(1.4, 1.6), rows=list(rows), provenance=provenance.provenance(1)
    )


def test_a_saved_result_is_said_and_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = people()
    with out.capture() as said:
        made = finish(out, "demo", "a / b", (1.5, 1.4, 1.6), [{"arm": "x", "speed": 2.5, "same": False}], save=True)
    assert read_results(tmp_path / RESULTS) == [made]
    assert "written to" in said.get()
    assert "ratio 1.500 (1.400 to 1.600): a / b" in said.get()
    assert out.width == WIDE


def test_a_terminal_keeps_its_own_width(monkeypatch):
    out = people()
    monkeypatch.setattr(type(out), "is_terminal", True)
    before = out.width
    with out.capture() as said:
        finish(out, "demo", "a / b", (1.0, 1.0, 1.0), [])
    assert out.width == before
    assert "written" not in said.get()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "yes"), (False, "NO"), (0.5, "0.5"), (3, "3"), ([1.0, None], "1 to -"), ("x", "x")],
)
def test_cells(value, text):
    assert options.cell(value) == text


def test_goals_may_stand_in_the_rows():
    rows = [{"engine": "a", "goal": "x >= 1", "met": True}, {"engine": "b", "goal": "x >= 1", "met": False}, {"c": 1}]
    assert "| peers | 1.500 | 1.400 to 1.600 | in its rows | NO | a / b |" in markdown([result("peers", rows)])
    assert "| in its rows | yes |" in markdown([result("peers", rows[:1])])
    assert "| demo | 1.500 | 1.400 to 1.600 | - | - |" in markdown([result("demo", rows[2:])])


def test_the_report_as_json(tmp_path, capsys):
    result("demo").save(tmp_path / "results")
    report.report(tmp_path, json_output=True)
    document = json.loads(capsys.readouterr().out)
    assert document["results"] == ["demo"]
    assert Path(document["markdown"]).read_text().startswith("# Results")


def test_bars_stand_for_the_rows_that_have_the_figure():
    rows = [{"K": 0, "ours_ms": 2.0}, {"K": 1, "ours_ms": None}, {"K": 4, "ours_ms": 3.0}]
    drawn = plots.plot(result("verify-cost", rows))
    assert drawn.startswith("<svg")
    assert "<!-- K=4 -->" in drawn
    assert "<!-- K=1 -->" not in drawn
    assert "<!-- ours ms -->" in drawn
    assert plots.plot(result("demo", rows)) == ""
    peers = plots.plot(result("peers-vllm", [{"engine": "e", "mode": "m", "requests": 16, "tokens_per_s": 2.0}]))
    assert "<!-- e · m · requests=16 -->" in peers


def test_without_matplotlib_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'sgl-spec\[bench\]'"):
        plots.plot(result())


def test_intervals_are_drawn_only_where_every_row_has_one():
    rows = [{"ratio_to_plain": 2.0, "spread": [1.5, 2.75]}, {"ratio_to_plain": 1.0, "spread": [1.25, 1.0]}]
    assert plots._errors(rows, "ratio_to_plain") == [[0.5, 0.0], [0.75, 0.0]]
    assert plots._errors([*rows, {"ratio_to_plain": 1.0}], "ratio_to_plain") is None
    assert plots._errors(rows, "tokens_per_s") is None


def test_where_it_was_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert provenance.provenance().threads == 5
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert provenance.provenance().threads == len(os.sched_getaffinity(0))
    assert provenance._version("no-such-package-here") == "not installed"
    said = {"rev-parse": "abc", "status": ""}
    monkeypatch.setattr(provenance, "_git", lambda folder, word, *_: said[word])
    assert provenance.commit() == "abc"
    said["status"] = " M file"
    assert provenance.commit() == "abc+"

    def none(*_):
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(provenance, "_git", none)
    assert provenance.commit() == "unknown"


def test_a_peer_that_is_gone_is_one_sentence(tmp_path):
    from sgl_spec.bench.peers.side import PeerProcess

    (tmp_path / "run.py").write_text(
        "import json, sys\nprint(json.dumps({'engine': 'e', 'modes': {}, 'failed': {}}), flush=True)\n"
        "print('out of memory', file=sys.stderr)\n"
    )
    with PeerProcess("gone", Path(sys.executable), str(tmp_path / "run.py"), {"threads": 1}, {}) as peer:
        peer._process.wait()
        with pytest.raises(EngineError, match="gone failed: out of memory"):
            peer.ask("plain", ["a"], 4)
