"""Rows and results of a batch: nothing lost, nothing twice, whatever the kill left behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from sgl_spec.batch.pool import REST_S, Pool
from sgl_spec.batch.results import Results
from sgl_spec.batch.rows import digests, read_rows
from sgl_spec.errors import ConfigError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}"}) + "\n\n" for i in range(4)))
    return path


def record(source: Path, index: int, error: Any = None) -> dict[str, Any]:
    return {"index": index, "digest": digests(source)[index], "id": None, "output": f"o{index}", "error": error}


def written(path: Path) -> list[int]:
    return [json.loads(line)["index"] for line in path.read_text().splitlines()]


def test_rows_skip_empty_lines_and_keep_bad_ones(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"id": "a"}\n\n[1]\nnot json\n\xff\n{"custom_id": "b", "url": "/v1", "body": {}}')
    rows = list(read_rows(path))
    assert [row.index for row in rows] == [0, 1, 2, 3, 4]
    assert [row.problem is None for row in rows] == [True, False, False, False, True]
    assert "line 4 of the input is not JSON" in (rows[2].problem or "")
    assert [rows[0].id, rows[4].id, rows[4].is_openai] == ["a", "b", True]
    assert [row.digest for row in rows] == digests(path)


def test_a_torn_last_line_is_dropped_and_the_rest_kept(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Results(out, digests(source)) as results:
        results.append(record(source, 2))
        results.append(record(source, 0))
    whole = out.read_bytes()
    line = json.dumps(record(source, 1)).encode()
    for cut in (1, len(line) // 2, len(line)):
        out.write_bytes(whole + line[:cut])
        with Results(out, digests(source)) as results:
            assert sorted(results.places) == [0, 2]
            results.append(record(source, 1))
        assert written(out) == [2, 0, 1]


def test_sort_and_drop_failed_rewrite_atomically(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Results(out, digests(source)) as results:
        for index, error in ((3, None), (1, {"type": "x"}), (0, None), (2, None)):
            results.append(record(source, index, error))
        results.sort()
        assert written(out) == [0, 1, 2, 3]
        assert results.failed == 1
        results.drop_failed()
        assert written(out) == [0, 2, 3]
        results.append(record(source, 1))
    assert written(out) == [0, 2, 3, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_refuses_what_it_must_not_touch(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Results(out, digests(source)) as results:
        results.append(record(source, 0))
        with pytest.raises(ConfigError, match="is being written by another batch"):
            Results(out, digests(source))
    with pytest.raises(ConfigError, match="made from another input"):
        Results(out, ["0" * 16])
    out.write_text('{"mine": 1}\n')
    with pytest.raises(ConfigError, match="holds other data"):
        Results(out, digests(source))
    assert out.read_text() == '{"mine": 1}\n'
    with pytest.raises(ConfigError, match="cannot be written"):
        Results(tmp_path / "absent" / "out.jsonl", [])
    with pytest.raises(ConfigError, match="cannot be read"):
        digests(tmp_path / "absent.jsonl")


def test_pool_takes_the_least_loaded_and_avoids_failing_servers() -> None:
    now = [0.0]
    pool = Pool(["a", "b", "c"], clock=lambda: now[0])
    with pool.take() as first, pool.take() as second, pool.take() as third:
        assert {first, second, third} == {"a", "b", "c"}
    pool.rest("a")
    with pool.take() as server:
        assert server == "b"
    with pool.take(avoid="b") as server:
        assert server == "c"
    now[0] = REST_S
    with pool.take() as server:
        assert server == "a"
    alone = Pool(["only"])
    alone.rest("only")
    with alone.take(avoid="only") as server:
        assert server == "only"
