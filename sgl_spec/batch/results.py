"""The output of a batch: complete lines only, each on disk before the next row is counted as done.

A record is appended with one write and fsync'd. A kill can therefore tear at most the last line, which the
next run cuts off; that row is computed again, every other one is kept. Records carry the position and the
digest of their row, so nothing is lost or repeated whatever the order in which rows ended.
"""

import fcntl
import json
import os
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sgl_spec.errors import ConfigError, SpecError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row's record lies in the file, and whether it is an error."""

    offset: int
    length: int
    failed: bool


class Results:
    """The output file, open for appending, locked against a second batch. `places` are the finished rows."""

    def __init__(self, path: Path, digests: list[str]) -> None:
        self.path = path
        self._digests = digests
        self.places: dict[int, Place] = {}
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"output={path} cannot be written ({error.strerror}): name another file.") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigError(
                f"output={path} is being written by another batch: wait for it or name another file."
            ) from None
        try:
            self._recover()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError) if error else nullcontext():  # what could not be written was said
            self._file.close()

    @property
    def failed(self) -> int:
        """How many rows have an error record."""
        return sum(place.failed for place in self.places.values())

    def append(self, record: dict[str, Any]) -> None:
        """Write one record durably. Mutates `places`; raises SpecError where the disk takes no more."""
        line = _line(record)
        offset = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise SpecError(
                f"output={self.path} cannot be written ({error.strerror}): free some disk space and run the same "
                "command again, it goes on after the last finished row."
            ) from None
        self.places[record["index"]] = Place(offset, len(line), record["error"] is not None)

    def drop_failed(self) -> None:
        """Remove the error records, so that their rows are run again."""
        kept = {index: place for index, place in self.places.items() if not place.failed}
        if len(kept) < len(self.places):
            self._rewrite(kept, sorted(kept, key=lambda index: kept[index].offset))

    def sort(self) -> None:
        """Put the records into the order of the input, atomically; nothing is written if they are."""
        order = sorted(self.places)
        if order != sorted(self.places, key=lambda index: self.places[index].offset):
            self._rewrite(self.places, order)

    def _recover(self) -> None:
        """Read what an earlier run wrote and cut off a torn last line."""
        self._file.seek(0)
        offset = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                self._file.truncate(offset)
                break
            self._remember(line, offset)
            offset += len(line)

    def _remember(self, line: bytes, offset: int) -> None:
        try:
            record = json.loads(line)
            index, digest, failed = record["index"], record["digest"], record["error"] is not None
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"output={self.path} holds other data than a batch's results: name another, or --overwrite."
            ) from None
        if type(index) is not int or not 0 <= index < len(self._digests) or self._digests[index] != digest:
            raise ConfigError(
                f"output={self.path} was made from another input (its row {index} differs): "
                "name another file, or --overwrite."
            )
        self.places[index] = Place(offset, len(line), failed)

    def _rewrite(self, places: dict[int, Place], order: list[int]) -> None:
        """Replace the file by the records `order` names; the old one stays whole until the new is on disk."""
        part = self.path.with_name(f".{self.path.name}.part")
        new = part.open("w+b")
        fcntl.flock(new, fcntl.LOCK_EX)
        moved: dict[int, Place] = {}
        for index in order:
            place = places[index]
            self._file.seek(place.offset)
            moved[index] = Place(new.tell(), place.length, place.failed)
            new.write(self._file.read(place.length))
        new.flush()
        os.fsync(new.fileno())
        part.replace(self.path)
        self._file.close()
        self._file, self.places = new, moved


def _line(record: dict[str, Any]) -> bytes:
    """Return a record's line in UTF-8; halves of surrogate pairs, which UTF-8 has no place for, stay escapes."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, allow_nan=False).encode() + b"\n"
