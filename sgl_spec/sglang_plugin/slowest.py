"""The requests that took longest since the server's start."""

import heapq
from typing import Any

KEPT = 10


class Slowest:
    """Keeps `KEPT` requests; `add` costs the comparison with the fastest of them."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self._heap: list[tuple[float, int, dict[str, Any]]] = []
        self._added = 0

    def add(self, seconds: float, facts: dict[str, Any]) -> None:
        """Consider one finished request."""
        self._added += 1
        entry = (seconds, self._added, {"seconds": seconds, **facts})
        if len(self._heap) < self.kept:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def as_list(self) -> list[dict[str, Any]]:
        """Return the facts of the kept requests, slowest first."""
        return [facts for _, _, facts in sorted(self._heap, reverse=True)]
