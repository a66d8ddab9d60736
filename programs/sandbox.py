"""Tests run on code that a model wrote: in a process of its own, with limits on time, memory, files and processes.

The limits keep a mistake small: an endless loop, a full memory, a fork bomb, a stray write. The network is cut
off where the kernel lets a user do that. It is no wall against code that wants out: run untrusted models in a
container.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")
SECONDS = 10
MEMORY_MB = 512
SHOWN = 300  # characters of a failure that are kept


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a candidate did: `passed` of `tests`, why the first other one failed, whether the network was cut."""

    passed: int
    tests: int
    problem: str | None
    network_cut: bool

    @property
    def good(self) -> bool:
        """Whether every test passed, and there was one."""
        return 0 < self.tests == self.passed


def judge(code: str, tests: str, seconds: int = SECONDS, memory_mb: int = MEMORY_MB) -> Verdict:
    """Run the functions `test_*` of `tests`, which see all names of `code`; returns the verdict, never raises."""
    with tempfile.TemporaryDirectory(prefix="sgl-spec-") as folder:
        home = Path(folder)
        (home / "candidate.py").write_text(code, encoding="utf-8")
        (home / "tests.py").write_text(tests, encoding="utf-8")
        reading, writing = os.pipe()
        command = [sys.executable, "-I", "-S", str(CHILD), str(writing), str(seconds), str(memory_mb)]
        try:
            process = subprocess.Popen(
                command,
                cwd=home,
                env={"HOME": folder, "PATH": "/usr/bin:/bin", "TMPDIR": folder},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writing,),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2 * seconds + 5)
        finally:
            _end(process)
        with os.fdopen(reading, encoding="utf-8", errors="replace") as pipe:
            lines = pipe.read().splitlines()
    return _verdict(lines, process.returncode)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the whole session, so that nothing the candidate started stays."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _verdict(lines: list[str], status: int) -> Verdict:
    """Read the child's report: one JSON line before the tests, one per test."""
    if not lines:
        return Verdict(0, 0, f"the candidate's process ended with status {status} before any test", False)
    start, *results = [json.loads(line) for line in lines]
    problems = [result["problem"] for result in results if result["problem"]]
    tests, passed = start["tests"], sum(result["problem"] is None for result in results)
    if len(results) < tests:
        problems.append(f"the process ended with status {status} after {len(results)} of {tests} tests")
    problem = start["problem"] or (problems[0] if problems else None)
    return Verdict(passed, tests, problem and problem[:SHOWN], start["network_cut"])
