"""Ctrl-C during a batch: the first one lets running rows end, the next one interrupts as usual."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def first_interrupt() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT sets. Outside the main thread signals are not ours: it stays unset."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def remember(number: int, *_: Any) -> None:
        stop.set()
        signal.signal(number, before)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
