"""Where and how a figure was measured: command, commit, versions, machine, date, threads, load."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel

PACKAGES = ("sglang", "torch", "transformers")


class Provenance(BaseModel):
    """Recorded when a benchmark ends. `load` is the machine's load average over one minute, per core."""

    command: str
    commit: str
    versions: dict[str, str]
    machine: dict[str, str | int | float]
    date: str
    threads: int
    load: float


def provenance(threads: int | None = None) -> Provenance:
    """What is true of this process and machine now; `threads` of the engine, default OMP_NUM_THREADS."""
    if threads is None:
        threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    return Provenance(
        command=command_line(sys.argv),
        commit=commit(),
        versions={"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        machine=machine(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        threads=threads,
        load=round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
    )


def command_line(argv: list[str]) -> str:
    """The command as one types it, without folders of this machine."""
    words = [Path(word).name if word.startswith(("/", "~")) else word for word in argv[1:]]
    return " ".join(["sgl-spec", *words])


def commit() -> str:
    """The commit of this code, with "+" if files that git tracks were changed; "unknown" outside a clone."""
    folder = Path(__file__).parents[2]
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "sgl_spec")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def machine() -> dict[str, str | int | float]:
    """Processor, cores (of the machine, and those this process may use), memory, instruction sets."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "processor": facts.get("model name", platform.processor() or platform.machine()),
        "instructions": " ".join(name for name in ("avx2", "avx512f", "amx_tile", "asimd") if name in flags),
        "cores": os.cpu_count() or 1,
        "cores_allowed": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory, 1),
        "accelerator": _accelerator(),
    }


def _accelerator() -> str:
    torch = sys.modules.get("torch")
    found = torch.accelerator.current_accelerator(check_available=True) if torch else None
    return "none" if found is None else str(found)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)  # noqa: S607
    return done.stdout.strip()
