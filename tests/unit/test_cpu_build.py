"""The loader: which sentence it gives when the kernels are not there, and how a build is cached."""

import subprocess
import sys
from pathlib import Path

import pytest

from sgl_spec.cpu import build


@pytest.fixture
def fresh(monkeypatch):
    build.load.cache_clear()
    yield monkeypatch
    build.load.cache_clear()


def test_switch(fresh):
    fresh.setenv(build.CHOICE, "torch")
    assert "SGL_SPEC_CPU_KERNELS=torch" in build.load()
    build.load.cache_clear()
    fresh.setenv(build.CHOICE, "fast")
    assert "'fast'" in build.load()


def test_no_compiler(fresh, tmp_path):
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path))
    fresh.setattr(build, "compiler", lambda: None)
    assert "install g++" in build.load()


def test_failed_build_leaves_nothing_behind(fresh, tmp_path):
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path))

    def broken(target: Path):
        raise RuntimeError("no space left\nlong log")

    fresh.setattr(build, "build", broken)
    assert build.load() == "the CPU kernels could not be built or loaded (no space left)"
    assert [p.name for p in build.cache_folder().iterdir()] == ["lock"]


def test_key_follows_the_sources(fresh, tmp_path):
    before = build.build_key()
    (tmp_path / "a.cpp").write_text("int x;")
    fresh.setattr(build, "SOURCES", tmp_path)
    changed = build.build_key()
    (tmp_path / "a.cpp").write_text("int y;")
    assert len({before, changed, build.build_key()}) == 3


def test_import_is_light():
    code = "import sgl_spec.cpu, sgl_spec.cpu.build, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
