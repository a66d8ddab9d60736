"""Hints for a name that nobody knows."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' for the known name nearest to `name`, else ' (known: ...)'."""
    names = list(known)
    match = get_close_matches(name.lower(), names, n=1)
    if match:
        return f" (did you mean {match[0]!r}?)"
    return f" (known: {', '.join(names)})" if len(names) <= 12 else ""
