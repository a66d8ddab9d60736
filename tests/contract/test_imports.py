"""Engine-free folders stay free of the engine: importing them loads neither sglang.srt nor torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "sgl_spec"
ENGINE_FREE = ("control", "draft", "verify", "train", "cpu", "advise", "bench")
SINGLE = ("stats", "config", "step", "errors", "names", "console", "cli", "models")
# These compute on tensors of any device, so torch is theirs; the engine never is.
TENSORS = ("sgl_spec.verify", "sgl_spec.step", "sgl_spec.draft.model", "sgl_spec.train", "sgl_spec.cpu")
PROBE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    for bad in ("sglang.srt", "transformers", "torch"):
        if bad in sys.modules and not (bad == "torch" and name.startswith(%r)):
            print(name, "loads", bad)
"""


def modules() -> list[str]:
    """Every engine-free module, those that may load torch last, so that they hide nobody's import."""
    foreign = set((ROOT / "bench" / "peers").glob("run_*.py"))  # scripts that run in the peers' own environments
    files = [ROOT / f"{name}.py" for name in SINGLE] + [
        f for d in ENGINE_FREE for f in (ROOT / d).rglob("*.py") if f not in foreign
    ]
    paths = [file.relative_to(ROOT.parent).with_suffix("") for file in files if file.is_file()]
    names = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    return sorted(names, key=lambda name: (name.startswith(TENSORS), name))


def test_engine_free_modules_import_without_the_engine() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROBE % (TENSORS,), *modules()],
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("folder", ENGINE_FREE)
def test_no_engine_import_is_written_in_engine_free_folders(folder: str) -> None:
    for file in (ROOT / folder).rglob("*.py"):
        assert "sglang.srt" not in file.read_text(encoding="utf-8"), file
