"""Durations and deadlines are read from clocks that nobody can set: a jump of the wall clock changes nothing."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATES = {"sgl_spec/bench/provenance.py"}  # the date that stands beside a result
WALL = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}
MODULES = {"time", "datetime", "date", "dt"}


def wall_clocks(source: str) -> list[int]:
    """The lines that read the wall clock."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in WALL:
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            lines += [node.lineno] if owner in MODULES else []
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            lines += [node.lineno for name in node.names if name.name in WALL]
    return lines


def test_the_search_finds_what_it_looks_for() -> None:
    lines = ["from time import time", "a = time.time()", "b = datetime.datetime.now()", "c = time.monotonic()"]
    assert sorted(wall_clocks("\n".join(lines))) == [1, 2, 3]


def test_no_duration_is_taken_from_the_wall_clock() -> None:
    files = [file for folder in ("sgl_spec", "programs") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    found = {str(file.relative_to(ROOT)) for file in files if wall_clocks(file.read_text(encoding="utf-8"))}
    assert found == DATES
