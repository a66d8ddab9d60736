"""Long text in chunks of at most so many tokens, cut where a reader would cut: paragraphs, sentences, words."""

import re
from collections.abc import Callable

CountTokens = Callable[[list[str]], list[int]]
SEAMS = (r"(?<=\n)(?=\S)", r"(?<=[.!?]\s)(?=\S)|(?<=[。！？])(?=\S)", r"(?<=\s)(?=\S)")  # coarse to fine


def chunks(text: str, most: int, count: CountTokens) -> list[str]:
    """Return `text` in pieces of at most `most` tokens each; the pieces joined are the text.

    `count` gives the tokens of several texts at once. A joined piece can have a few tokens less than its parts
    together, never more than `most` by this sum.
    """
    if most < 1:
        raise ValueError(f"most={most} must be at least 1")
    return _packed(text, most, count, 0) if text.strip() else []


def _packed(text: str, most: int, count: CountTokens, level: int) -> list[str]:
    """Cut at the seams of `level`, cut what is still too long at finer ones, join neighbours that fit together."""
    parts = [part for part in re.split(SEAMS[level], text) if part] if level < len(SEAMS) else _halves(text)
    packed: list[str] = []
    room = 0
    for part, size in zip(parts, count(parts), strict=True):
        if size > most and len(part) > 1:
            packed += _packed(part, most, count, level + 1)
            room = 0
        elif packed and size <= room:
            packed[-1] += part
            room -= size
        else:
            packed.append(part)
            room = most - size
    return packed


def _halves(text: str) -> list[str]:
    middle = max(1, len(text) // 2)
    return [part for part in (text[:middle], text[middle:]) if part]
