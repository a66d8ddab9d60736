"""Several servers for one batch: each request goes to the one with the fewest running, failing ones rest."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

Server = TypeVar("Server")
REST_S = 5.0  # how long a server that could not be reached is passed over


class Pool(Generic[Server]):
    """The servers and their load. `clock` is for tests."""

    def __init__(self, servers: Sequence[Server], clock: Callable[[], float] = time.monotonic) -> None:
        self.servers = list(servers)
        self._running = [0] * len(self.servers)
        self._rests_until = [0.0] * len(self.servers)
        self._clock = clock
        self._lock = threading.Lock()

    @contextmanager
    def take(self, avoid: Server | None = None) -> Iterator[Server]:
        """Yield the least loaded server, another one than `avoid` if there is one."""
        with self._lock:
            at = self._choose(avoid)
            self._running[at] += 1
        try:
            yield self.servers[at]
        finally:
            with self._lock:
                self._running[at] -= 1

    def rest(self, server: Server) -> None:
        """Pass over `server` for a while; if all rest, the one that rests the shortest is taken anyway."""
        with self._lock:
            self._rests_until[self.servers.index(server)] = self._clock() + REST_S

    def _choose(self, avoid: Server | None) -> int:
        now = self._clock()
        several = len(self.servers) > 1

        def cost(at: int) -> tuple[bool, float, int]:
            shunned = several and self.servers[at] is avoid
            return shunned, max(0.0, self._rests_until[at] - now), self._running[at]

        return min(range(len(self.servers)), key=cost)
