"""No process outlives its owner: a server started by `Runtime` ends when the pipe to its owner closes.

The kernel closes the pipe however the owner ends, SIGKILL included, and unlike a parent-death signal it
does not fire when only the thread that started the server ends.
"""

import os
import signal
import sys
import threading
import time

GRACE_S = 1.0  # SGLang looks at its SIGTERM every 5 s, and drains what nobody waits for any more
WATCH = "owner-watch"
"""Name of the watching thread; it only ever waits in one read, so the process may still fork."""


def die_with_stdin() -> None:
    """Watch stdin in a thread; at its end, kill this process's whole group."""
    threading.Thread(target=_watch, name=WATCH, daemon=True).start()


def _watch() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def stop_group(group: int, grace_s: float = GRACE_S) -> None:
    """End every process of another group: SIGTERM, and SIGKILL to those left after `grace_s` seconds."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group, sent)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and alive(group):
            time.sleep(0.05)


def alive(group: int) -> bool:
    """Whether a process of the group still runs (zombies do not count)."""
    import psutil

    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return False
