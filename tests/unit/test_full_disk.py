"""A full disk: what was stored stays whole, no scrap is left, and one sentence says what to do."""

import json
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sgl_spec.batch.results import Results
from sgl_spec.config import SpecConfig
from sgl_spec.control import make_controller, save_state
from sgl_spec.errors import ConfigError, SpecError
from sgl_spec.models import build_once
from sgl_spec.sglang_plugin import cost_file
from sgl_spec.train.shards import Sequence, stored_keys, write_shard


@contextmanager
def full_disk(left: int = 0) -> Iterator[None]:
    """No file may grow past `left` bytes: a write beyond fails as on a full disk (EFBIG for ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_cost_file_is_given_up_and_the_old_one_kept(tmp_path, caplog, monkeypatch):
    config = SpecConfig.parse({"model_path": "x", "cost_file": str(tmp_path / "costs.json")})
    controller = make_controller(config)
    file = cost_file.CostFile(config, controller)
    save_state(controller, tmp_path / "costs.json", file.key)
    before = (tmp_path / "costs.json").read_bytes()
    monkeypatch.setattr(cost_file, "EVERY_S", 0.0)
    with caplog.at_level(logging.WARNING), full_disk():
        file.save_sometimes()
        file.save_sometimes()
    assert [line for line in caplog.messages if "costs.json cannot be written" in line] == caplog.messages
    assert len(caplog.messages) == 1
    assert names(tmp_path) == ["costs.json"]
    assert (tmp_path / "costs.json").read_bytes() == before


def test_a_model_folder_that_does_not_fit(tmp_path):
    with full_disk(), pytest.raises(ConfigError, match="free some disk space or set XDG_CACHE_HOME") as caught:
        build_once(tmp_path / "model", lambda folder: folder.joinpath("weights").write_bytes(bytes(10)))
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == [".model.lock"]


def test_a_batch_keeps_its_finished_rows_and_goes_on(tmp_path):
    out = tmp_path / "out.jsonl"
    digests = ["a", "b", "c"]

    def run(rows: list[int]) -> None:
        with Results(out, digests) as results:
            for index in rows:
                results.append({"index": index, "digest": digests[index], "error": None})

    run([0])
    whole = out.read_bytes()
    with full_disk(len(whole) + 7), pytest.raises(SpecError, match=r"output=.*out\.jsonl cannot be written"):
        run([1])
    assert out.read_bytes()[: len(whole)] == whole
    run([1, 2])
    assert [json.loads(line)["index"] for line in out.read_text().splitlines()] == [0, 1, 2]


def test_training_text_that_does_not_fit(tmp_path):
    def sequences(key: str) -> list[Sequence]:
        return [Sequence(key, "chat", 0.0, 1, np.arange(40), np.zeros((39, 2)), np.zeros((39, 2)))]

    write_shard(tmp_path, sequences("first"))
    with full_disk(100), pytest.raises(ConfigError, match="free some disk space"):
        write_shard(tmp_path, sequences("second"))
    assert names(tmp_path) == ["shard-00000.npz"]
    assert stored_keys(tmp_path) == {"first"}
