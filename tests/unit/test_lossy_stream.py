"""What a server says is lost on a full disk; every other failure of a stream is raised as before."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from sgl_spec.sglang_plugin.lossy_stream import LossyStream


def test_writes_to_a_full_disk_are_lost() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        raw = io.TextIOWrapper(full, write_through=True)
        with pytest.raises(OSError, match="No space left"):
            raw.write("x")
        stream = LossyStream(raw)
        print("y" * 100_000, file=stream, flush=True)
        assert stream.write("z" * 100_000) == 100_000
        assert stream.fileno() == full.fileno()


def test_what_fits_is_written_and_a_closed_stream_is_still_an_error() -> None:
    held = io.StringIO()
    stream = LossyStream(held)
    print("said", file=stream, flush=True)
    assert held.getvalue() == "said\n"
    held.close()
    with pytest.raises(ValueError, match="closed"):
        stream.write("x")


def test_other_failures_are_raised() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    for act in (lambda s: s.write("x"), lambda s: s.flush()):
        with pytest.raises(BrokenPipeError):
            act(LossyStream(Broken()))


def test_a_process_goes_on() -> None:
    code = (
        "import sys; from sgl_spec.sglang_plugin import lossy_stream as l; l.install(); l.install()\n"
        "for _ in range(99): print('x' * 999, file=sys.stderr, flush=True); print('x' * 999, flush=True)\n"
        "import os; os._exit(7)"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=full, check=False)
    assert done.returncode == 7
