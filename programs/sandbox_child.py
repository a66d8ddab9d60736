"""The process inside the sandbox: limits itself, loads candidate.py and tests.py, reports each test on a pipe.

Run by `programs.sandbox` with -I -S, so it imports the standard library only.
"""

import ctypes
import json
import os
import resource
import sys
from typing import Any

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
FILE_MB = 16
FILES = 64
PROCESSES = 0  # further ones: none


def main(report_to: int, seconds: int, memory_mb: int) -> None:
    """Load both files from the working folder, run the tests, write one JSON line per result."""
    cut = ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0
    limit(seconds, memory_mb)
    names: dict[str, Any] = {"__name__": "candidate"}
    problem = load("candidate.py", names) or load("tests.py", names)
    tests = [] if problem else [name for name in names if name.startswith("test_") and callable(names[name])]
    if not tests and not problem:
        problem = "the test file holds no function test_*"
    say(report_to, {"tests": len(tests), "problem": problem, "network_cut": cut})
    for name in tests:
        say(report_to, {"test": name, "problem": attempt(name, names)})


def limit(seconds: int, memory_mb: int) -> None:
    """Set the limits, for good."""
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: memory_mb << 20,
        resource.RLIMIT_FSIZE: FILE_MB << 20,
        resource.RLIMIT_NOFILE: FILES,
        resource.RLIMIT_NPROC: PROCESSES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def load(file: str, names: dict[str, Any]) -> str | None:
    """Execute a file in `names`; returns why that failed, None if it did not."""
    try:
        with open(file, encoding="utf-8") as source:  # noqa: PTH123  # pathlib would load a dozen modules here
            exec(compile(source.read(), file, "exec"), names)  # noqa: S102  # the purpose of this process
    except BaseException as error:  # SystemExit too: the candidate must not end the report
        return f"{file}: {type(error).__name__}: {error}"
    return None


def attempt(name: str, names: dict[str, Any]) -> str | None:
    """Run one test; returns why it failed, None if it passed."""
    try:
        names[name]()
    except BaseException as error:  # as above
        return f"{name}: {type(error).__name__}: {error}"
    return None


def say(report_to: int, document: dict[str, Any]) -> None:
    """Write one line of the report."""
    os.write(report_to, json.dumps(document).encode() + b"\n")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
