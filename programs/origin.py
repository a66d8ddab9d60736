"""Where streamed text came from: the target alone, or guesses of the draft model, the cache or a prediction.

A server that reports statistics while it streams reports sums per request. The difference between two pieces
says which sources the newer piece's tokens came from; a piece takes the colour of the source that gave most
of its guessed tokens. Without such reports all text is uncoloured: nothing is guessed from timing.
"""

from typing import Any

TARGET = "target"
COLOURS = {TARGET: "default", "model": "green", "cache": "cyan", "prompt": "blue", "prediction": "magenta"}


class Origins:
    """Follows one stream."""

    def __init__(self) -> None:
        self._tokens = 0
        self._accepted: dict[str, int] | None = {}

    def of(self, meta: dict[str, Any]) -> str:
        """Return the main source of the tokens since the last call; `meta` is the newest meta_info."""
        before, self._accepted = self._accepted, accepted_by_source(meta)
        if before is None or self._accepted is None:
            return TARGET
        new = {source: count - before.get(source, 0) for source, count in self._accepted.items()}
        best = max(new, key=lambda source: new[source], default=TARGET)
        return best if new.get(best, 0) > 0 else TARGET


def accepted_by_source(meta: dict[str, Any]) -> dict[str, int] | None:
    """Return accepted tokens by source, None where the server did not report."""
    spec = meta.get("sgl_spec")
    if spec is None:
        return None
    return {source: counts["accepted"] for source, counts in spec["accepted_by_source"].items()}


def tokens_by_source(meta: dict[str, Any]) -> dict[str, int]:
    """Return the tokens of a finished request by source, the target's own too; empty without a report."""
    accepted = accepted_by_source(meta)
    if accepted is None:
        return {}
    own = (meta.get("completion_tokens") or 0) - sum(accepted.values())
    return {TARGET: max(0, own), **{source: count for source, count in accepted.items() if count}}


def colour(source: str) -> str:
    """Return rich's style for a source's text."""
    return COLOURS.get(source, "yellow")
