"""The input of a batch: a JSON object per line, each known by its position and by the digest of its text."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_spec.config import shown
from sgl_spec.errors import ConfigError

DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the input. `index` counts lines with text from 0; `problem` says why it is no row."""

    index: int
    digest: str
    values: dict[str, Any]
    problem: str | None = None

    @property
    def id(self) -> str | int | None:
        """The row's own name, if it has one."""
        name: str | int | None = self.values.get("custom_id", self.values.get("id"))
        return name

    @property
    def is_openai(self) -> bool:
        """Whether the row is a request of an OpenAI batch file."""
        return is_openai(self.values)


def is_openai(values: dict[str, Any]) -> bool:
    """Whether `values` have the form of an OpenAI batch request."""
    return {"custom_id", "url", "body"} <= values.keys()


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a JSONL file; a line that is no JSON object is a row with a problem."""
    with path.open("rb") as lines:
        index = 0
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if text:
                yield _row(index, number, text)
                index += 1


def digests(path: Path) -> list[str]:
    """Return the digest of every row, by position."""
    try:
        with path.open("rb") as lines:
            return [_digest(line.strip()) for line in lines if line.strip()]
    except OSError as error:
        raise ConfigError(f"input={path} cannot be read ({error.strerror}): name a JSONL file.") from None


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:DIGEST_CHARS]


def _row(index: int, number: int, text: bytes) -> Row:
    digest = _digest(text)
    try:
        values = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:  # also numbers beyond Python's bounds, and brackets without end
        return Row(index, digest, {}, f"line {number} of the input is not JSON: {error}")
    if not isinstance(values, dict):
        return Row(index, digest, {}, f"line {number} of the input is no JSON object")
    return Row(index, digest, values)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is no finite number")
    return value
