"""Our Prometheus counters, beside SGLang's on ``/metrics`` (with ``--enable-metrics``).

They follow the server's statistics, so a counter and `Runtime.stats()` never disagree by more than
`INTERVAL_S` of work; when a request ends they are equal.
"""

import time
from typing import Any

INTERVAL_S = 1.0


class Counters:
    """Proposed and accepted draft tokens per source, rounds, and requests."""

    def __init__(self, model_name: str) -> None:
        from prometheus_client import Counter  # after SGLang has set where its processes meet

        by_source, by_model = ["model_name", "source"], ["model_name"]
        self.model_name = model_name
        self.proposed = Counter("sgl_spec_proposed_tokens", "Draft tokens that were verified.", by_source)
        self.accepted = Counter("sgl_spec_accepted_tokens", "Draft tokens that were kept.", by_source)
        self.rounds = Counter("sgl_spec_rounds", "Rounds of requests, plain ones included.", by_model)
        self.requests = Counter("sgl_spec_requests", "Requests that ended.", by_model)
        self._counted: dict[tuple[Any, str], int] = {}
        self._next = 0.0

    def due(self) -> bool:
        """Whether `INTERVAL_S` has passed since the last update."""
        return time.monotonic() >= self._next

    def update(self, stats: dict[str, Any]) -> None:
        """Raise the counters to what `SpecStats.as_dict` says."""
        for source, counts in stats["by_source"].items():
            self._raise(self.proposed, source, counts["proposed"])
            self._raise(self.accepted, source, counts["accepted"])
        self._raise(self.rounds, "", stats["rounds"])
        self._raise(self.requests, "", stats["requests"])
        self._next = time.monotonic() + INTERVAL_S

    def _raise(self, counter: Any, source: str, value: int) -> None:
        labels = (self.model_name, source) if source else (self.model_name,)
        before = self._counted.get((counter, source), 0)
        counter.labels(*labels).inc(value - before)
        self._counted[counter, source] = value
