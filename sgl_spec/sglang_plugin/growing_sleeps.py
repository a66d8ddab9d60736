"""The module ``time`` for SGLang's HTTP server, which sleeps a second before it first looks whether it listens."""

import time
from typing import Any

FIRST_S = 0.02


class GrowingSleeps:
    """Everything of ``time``; the first sleeps are shorter than asked for."""

    def __init__(self) -> None:
        self._longest = FIRST_S

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleep `seconds`, at first at most 20 ms, then twice as long each time."""
        time.sleep(min(seconds, self._longest))
        self._longest *= 2
