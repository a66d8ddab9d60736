"""The loader: which sentence it gives when the kernels are not there, and how a build is cached."""

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

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
    assert build.load().startswith("the CPU kernels could not be built or loaded (no space left);")
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


TINY = """
#include <Python.h>
PyMODINIT_FUNC PyInit_sgl_spec_cpu_kernels() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "sgl_spec_cpu_kernels", nullptr, -1, nullptr};
  return PyModule_Create(&definition);
}
"""
LOAD = """
import pathlib, sys
from sgl_spec.cpu import build
build.SOURCES = pathlib.Path(sys.argv[1])
print(build.load())
"""


def test_two_processes_build_once(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "tiny.cpp").write_text(TINY)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", LOAD, str(tmp_path / "src")]
    both = [subprocess.Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True) for _ in range(2)]
    answers = [process.communicate() for process in both]
    assert all(out.startswith("<module 'sgl_spec_cpu_kernels' from") for out, _ in answers)
    assert sorted("building" in err for _, err in answers) == [False, True]
    assert len([p for p in (tmp_path / "cache" / "sgl-spec" / "kernels").iterdir() if p.is_dir()]) == 1


def test_a_compile_error_is_named(fresh, tmp_path):
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bad.cpp").write_text("int x = ;")
    fresh.setattr(build, "SOURCES", tmp_path)
    sentence = build.load()
    assert "bad.cpp" in sentence
    assert "error:" in sentence
    assert "SGL_SPEC_CPU_KERNELS=torch" in sentence


def test_a_build_leaves_the_module_alone_and_the_environment_as_it_was(fresh, tmp_path, capfd):
    """Compiled in this process; what stands beside the module for the linker goes."""
    from torch.utils import cpp_extension

    # PyTorch counts the builds of a process, and names a second one's module otherwise.
    fresh.setattr(cpp_extension, "JIT_EXTENSION_VERSIONER", type(cpp_extension.JIT_EXTENSION_VERSIONER)())
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "tiny.cpp").write_text(TINY)
    fresh.setattr(build, "SOURCES", tmp_path / "src")
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fresh.delenv("CXX", raising=False)
    path = os.environ["PATH"]
    assert build.load().__name__ == build.MODULE
    assert "CXX" not in os.environ
    assert os.environ["PATH"] == path
    [made] = [folder for folder in build.cache_folder().iterdir() if folder.is_dir()]
    assert made.name == build.build_key()
    assert not list(made.glob("*.o"))
    assert "building the CPU kernels" in capfd.readouterr().err


def test_a_file_that_is_no_module_is_said(fresh, tmp_path):
    with pytest.raises(ImportError, match=r"notes\.txt is not an extension module"):
        build.import_module(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("Error building\n  x.cpp:3: error: no ';'\nmore"), "x.cpp:3: error: no ';'"),
        (OSError(28, "No space left"), "[Errno 28] No space left"),
        (RuntimeError(""), "RuntimeError"),
    ],
)
def test_the_line_that_says_most(error, reason):
    assert build.reason_of(error) == reason
