"""Builds and loads the C++ kernels, once per source, compiler and PyTorch version.

The module lands in the user's cache folder under a hash of everything that it depends on, so an upgrade builds
again and an unchanged start only loads. Two processes may build at once: a file lock lets one do it (the system
frees the lock when a process dies), and a rename publishes the result whole.
"""

import fcntl
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).parent / "csrc"
MODULE = "sgl_spec_cpu_kernels"
CFLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wno-maybe-uninitialized"]
CHOICE = "SGL_SPEC_CPU_KERNELS"
"""Environment variable: `native` (the default) or `torch`, which turns the C++ kernels off."""


def cache_folder() -> Path:
    """The folder of built modules: `$XDG_CACHE_HOME/sgl-spec/kernels`, by default under `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "sgl-spec" / "kernels"


def compiler() -> str | None:
    """The C++ compiler that a build would call, or None."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")


def build_key() -> str:
    """Hash of the sources, the flags, Python, PyTorch and the processor family."""
    import torch

    digest = hashlib.sha256()
    for part in (torch.__version__, sys.version, platform.machine(), compiler() or "", *CFLAGS):
        digest.update(part.encode() + b"\0")
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def import_module(path: Path) -> ModuleType:
    """Imports the built extension module at `path`."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not an extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def tools() -> Iterator[None]:
    """The environment of a build: our choice of compiler, and the `ninja` of this Python if it has one."""
    changed = {"CXX": compiler() or "c++", "PATH": os.environ.get("PATH", "")}
    if importlib.util.find_spec("ninja") is not None:
        import ninja

        changed["PATH"] = str(ninja.BIN_DIR) + os.pathsep + changed["PATH"]
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def build(target: Path) -> None:
    """Compiles the sources into the folder `target`; raises RuntimeError or OSError when that fails."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns of a missing GPU
    from torch.utils import cpp_extension

    started = time.monotonic()
    print("sgl-spec: building the CPU kernels (once; about a minute) ...", file=sys.stderr, flush=True)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=target.parent))
    try:
        with tools():
            cpp_extension.load(
                MODULE,
                [str(p) for p in sorted(SOURCES.glob("*.cpp"))],
                extra_cflags=CFLAGS,
                build_directory=str(work),
            )
        for scrap in work.glob("*.o"):
            scrap.unlink()
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"sgl-spec: built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def reason_of(error: Exception) -> str:
    """The line of a failed build that says most: the compiler's first error, else the first line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line.strip() for line in lines if "error:" in line), lines[0])


@cache
def load() -> ModuleType | str:
    """The kernel module, built first where needed, or one sentence that says why it is not there.

    `SGL_SPEC_CPU_KERNELS=torch` asks for the sentence: callers then take their PyTorch path.
    """
    choice = os.environ.get(CHOICE, "native")
    if choice == "torch":
        return f"the CPU kernels are off because {CHOICE}=torch; unset it to turn them on"
    if choice != "native":
        return f"{CHOICE}={choice!r} is neither 'native' nor 'torch'; unset it to turn the CPU kernels on"
    target = cache_folder() / build_key()
    path = target / f"{MODULE}.so"
    try:
        if not path.exists():
            if compiler() is None:
                return "the CPU kernels need a C++ compiler and none was found; install g++ (or set CXX)"
            target.parent.mkdir(parents=True, exist_ok=True)
            with (target.parent / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    build(target)
        return import_module(path)
    except (OSError, RuntimeError, ImportError) as error:
        return (
            f"the CPU kernels could not be built or loaded ({reason_of(error)}); set {CHOICE}=torch to run without them"
        )
