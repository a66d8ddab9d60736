"""KV slots of a draft that reads its own tokens, not the target's: who has read what, and where it lies.

A draft with another vocabulary has another number of tokens for the same text, so it cannot use the target's
slots. It gets a table and slots of its own. A request finds what it shares with any other one (forks of one
program, a later request with the same prompt): slots are counted, not copied.

Invariant: slot `slots[j]` of a row holds the KV of `ids[j]` after `ids[:j]`. It holds because rows share only
what they have in common, and a row that goes another way gets fresh slots from there on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Row:
    """One request's line of the table. `slots` may be longer than `ids`: room for what is drafted next."""

    number: int
    ids: list[int] = field(default_factory=list)  # what the draft has read
    slots: list[int] = field(default_factory=list)
    round: int = 0  # the last in which it was used


class OwnKv:
    """Hands out slots 1..size-1 (0 is padding) to rows 1.. of `table` [rows, width]; forgets the least recent."""

    def __init__(self, table: Tensor, size: int) -> None:
        self.table = table
        self._uses = [0] * size
        self._free = list(range(size - 1, 0, -1))
        self._lines = list(range(table.shape[0] - 1, 0, -1))
        self._rows: OrderedDict[str, Row] = OrderedDict()
        self._round = 0

    def begin_round(self) -> None:
        """Rows of earlier rounds may be forgotten from here on."""
        self._round += 1

    def read(self, rid: str) -> int:
        """Return how many of the draft's tokens of a request are there."""
        row = self._rows.get(rid)
        return 0 if row is None else len(row.ids)

    def fit(self, rid: str, ids: Sequence[int], room: int) -> Row | None:
        """Make the request's row hold `ids` and `room` more; None where the table or the slots do not suffice.

        `row.ids` is what need not be read again, at most all but the last of `ids`. The caller reads the rest
        and appends to `row.ids` what it read.
        """
        wanted = len(ids) + room
        if wanted > self.table.shape[1]:
            return None
        row = self._rows.get(rid) or self._open(rid, ids)
        if row is None:
            return None
        row.round = self._round
        self._rows.move_to_end(rid)
        self._cut(row, min(common(row.ids, ids), len(ids) - 1))
        missing = wanted - len(row.slots)  # at least 1: the last of `ids` is always read anew
        while missing > len(self._free):
            if not self._forget_one():
                return None
        start = len(row.slots)
        for _ in range(missing):
            slot = self._free.pop()
            self._uses[slot] = 1
            row.slots.append(slot)
        self.table[row.number, start:wanted] = self.table.new_tensor(row.slots[start:])
        return row

    def forget_all(self) -> None:
        """Empty the table."""
        while self._rows:
            self._drop(next(iter(self._rows)))

    def check_integrity(self) -> None:
        """Raise AssertionError where slots are lost, counted wrongly or free while in use."""
        uses = [0] * len(self._uses)
        for row in self._rows.values():
            assert len(row.ids) <= len(row.slots)
            assert self.table[row.number, : len(row.slots)].tolist() == row.slots
            for slot in row.slots:
                uses[slot] += 1
        assert uses == self._uses
        free = set(self._free)
        assert len(free) == len(self._free)
        assert free == {slot for slot in range(1, len(uses)) if not uses[slot]}

    def _open(self, rid: str, ids: Sequence[int]) -> Row | None:
        """Start a request with the longest beginning that another row has read."""
        if not self._lines and not self._forget_one():
            return None
        best = max(self._rows.values(), key=lambda row: common(row.ids, ids), default=None)
        row = self._rows[rid] = Row(self._lines.pop())
        if best is not None:
            shared = common(best.ids, ids)
            row.ids, row.slots = best.ids[:shared], best.slots[:shared]
            for slot in row.slots:
                self._uses[slot] += 1
            self.table[row.number, :shared] = self.table[best.number, :shared]
        return row

    def _cut(self, row: Row, keep: int) -> None:
        for slot in row.slots[keep:]:
            self._uses[slot] -= 1
            if not self._uses[slot]:
                self._free.append(slot)
        del row.ids[keep:], row.slots[keep:]

    def _forget_one(self) -> bool:
        """Free the least recently used row, unless it is in use in this round."""
        rid = next(iter(self._rows), None)
        if rid is None or self._rows[rid].round == self._round:
            return False
        self._drop(rid)
        return True

    def _drop(self, rid: str) -> None:
        row = self._rows.pop(rid)
        self._cut(row, 0)
        self._lines.append(row.number)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    length = min(len(a), len(b))
    if list(a[:length]) == list(b[:length]):
        return length
    low, high = 0, length  # a[:low] agrees, a[:high] does not
    while high - low > 1:
        middle = (low + high) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle
    return low
