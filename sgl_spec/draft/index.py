"""A bounded index of token text: where did the last 8, 4 or 2 tokens occur before?

The layout is that of a sliding-window compressor (hash chains as in RFC 1951, section 4), chosen over a
suffix tree because each token costs a fixed number of bytes, appending is a few list writes, and forgetting
the oldest text is one comparison. SGLang's own n-gram corpus answers in 33 microseconds from C++, but returns
tokens without counts; here the occurrences themselves come back, so that continuations can be counted.

- Text lies in chunks of a ring. A *position* is a running number that is never reused; the token at position
  v sits at `v % capacity`, and v is alive as long as v >= `floor`.
- For n in ORDERS, a head table leads from the hash of n tokens to the latest position that follows such
  tokens, and a link at each position leads to the one before it. Links only lead to positions that were
  linked earlier, so a walk ends; it stops at the first position that is no longer alive.
- Hashes only find candidates: tokens are compared before a position is returned. Hence a returned position
  follows a true occurrence, whatever collides.
- A position is linked when its token is written, so each occurrence has a continuation.
- When the ring is full the oldest chunk goes; one that was used since it was written becomes the newest
  instead (second chance), at most SECOND_CHANCES times in a row, so that an append has bounded cost.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ORDERS = (8, 4, 2)  # context lengths with a table of their own, longest first
OVERLAP = ORDERS[0]  # tokens repeated at the start of a writer's next chunk, so that no context is lost
LONGEST = 16  # a match of 8 is checked for this length too
WALK = 16  # candidates looked at per order
ENOUGH = 8  # occurrences that are counted: more add nothing
FEW = 16  # tokens up to which linking one by one is faster than in bulk
SECOND_CHANCES = 4

# One odd factor per distance from the end of the context: h_n = sum of token * factor over n tokens.
# Sums stay below 2**63 because ids are below 2**31 and the factors below 2**29.
_FACTORS = (404099157, 363591041, 376221739, 290264613, 531267509, 214013903, 145093271, 417160067)
_FOLD = 20  # the high bits carry the mixing; fold them onto the low ones


@dataclass(slots=True)
class Writer:
    """One text that is being appended: its tag (a program) and the running number of the chunk it fills."""

    tag: int = 0
    chunk: int = -1  # -1 before the first token


class SuffixIndex:
    """Texts of one owner, at most `capacity` tokens of them; not thread-safe.

    capacity, chunk: tokens, powers of two, capacity >= 2 * chunk, chunk >= 32.
    """

    BYTES_PER_TOKEN = 4 + 16 * len(ORDERS)

    def __init__(self, capacity: int = 1 << 18, chunk: int = 256) -> None:
        if capacity & (capacity - 1) or chunk & (chunk - 1) or capacity < 2 * chunk or chunk < 4 * OVERLAP:
            raise ValueError(f"capacity {capacity}, chunk {chunk}: powers of two, chunk >= 32, 2 chunks")
        self.capacity, self.chunk, self.slots = capacity, chunk, capacity // chunk
        self._mask = capacity - 1
        self._next = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything; an open writer goes on in a new chunk."""
        self._next += 2 * self.slots  # now floor > 0, so that 0 ends a chain, and no older position lives
        self._tok = array("i", bytes(4 * self.capacity))
        self._heads = tuple(array("q", bytes(8 * self.capacity)) for _ in ORDERS)
        self._prevs = tuple(array("q", bytes(8 * self.capacity)) for _ in ORDERS)
        self._length = [0] * self.slots  # tokens in the slot's chunk
        self._carried = [0] * self.slots  # leading tokens repeated from the writer's chunk before
        self._tag = [0] * self.slots
        self._used = [False] * self.slots

    @property
    def floor(self) -> int:
        """The least position that is alive."""
        return (self._next - self.slots) * self.chunk

    @property
    def size(self) -> int:
        """Tokens held."""
        return sum(self._length)

    def nbytes(self) -> int:
        """Return the bytes of the tables: allocated at once, they never grow."""
        return self.capacity * self.BYTES_PER_TOKEN

    # -- writing ---------------------------------------------------------------------------------------

    def append(self, writer: Writer, tokens: Sequence[int]) -> None:
        """Add `tokens` to the writer's text."""
        done = 0
        while done < len(tokens):
            slot, n = self._room(writer)
            take = min(self.chunk - n, len(tokens) - done)
            at = slot * self.chunk + n
            self._tok[at : at + take] = array("i", tokens[done : done + take])
            self._length[slot] = n + take
            if n >= OVERLAP and take <= FEW:
                self._link_few(writer.chunk, n, n + take)
            else:
                self._link(writer.chunk, n, n + take)
            done += take

    def _link_few(self, chunk: int, start: int, stop: int) -> None:
        """Link [start, stop) in every order, as `_link` does; faster for a round's few tokens."""
        tok, mask, v = self._tok, self._mask, chunk * self.chunk + start
        at = v & mask
        (h8, h4, h2), (p8, p4, p2) = self._heads, self._prevs
        f0, f1, f2, f3, f4, f5, f6, f7 = _FACTORS
        x7, x6, x5, x4, x3, x2, x1, x0 = tok[at - OVERLAP : at]
        for _ in range(start, stop):
            acc = x0 * f0 + x1 * f1
            h = (acc ^ acc >> _FOLD) & mask
            p2[at] = h2[h]
            h2[h] = v
            acc += x2 * f2 + x3 * f3
            h = (acc ^ acc >> _FOLD) & mask
            p4[at] = h4[h]
            h4[h] = v
            acc += x4 * f4 + x5 * f5 + x6 * f6 + x7 * f7
            h = (acc ^ acc >> _FOLD) & mask
            p8[at] = h8[h]
            h8[h] = v
            x7, x6, x5, x4, x3, x2, x1, x0 = x6, x5, x4, x3, x2, x1, x0, tok[at]
            v += 1
            at += 1

    def _room(self, writer: Writer) -> tuple[int, int]:
        """Return the writer's slot and the tokens in it, opening a chunk when it is full or gone."""
        carried = array("i")
        if writer.chunk >= self._next - self.slots:
            slot = writer.chunk % self.slots
            n = self._length[slot]
            if n < self.chunk:
                return slot, n
            end = (slot + 1) * self.chunk
            carried = self._tok[end - OVERLAP : end]
        writer.chunk = self._open_chunk()
        slot, n = writer.chunk % self.slots, len(carried)
        at = slot * self.chunk
        self._tok[at : at + n] = carried
        self._length[slot] = self._carried[slot] = n
        self._tag[slot], self._used[slot] = writer.tag, False
        return slot, n

    def _open_chunk(self) -> int:
        """Return the running number of a chunk whose slot may be overwritten."""
        for _ in range(SECOND_CHANCES):
            slot = self._next % self.slots
            if not self._used[slot]:
                break
            self._used[slot] = False
            self._next += 1
            self._link(self._next - 1, self._carried[slot], self._length[slot])
        self._next += 1
        return self._next - 1

    def _link(self, chunk: int, start: int, stop: int) -> None:
        """Link the positions [start, stop) of a chunk in every order, as one-by-one appends would."""
        base = chunk * self.chunk
        at0 = base & self._mask
        text = np.frombuffer(self._tok, dtype=np.int32)[at0 : at0 + stop].astype(np.int64)
        for n, heads, prevs in zip(ORDERS, self._heads, self._prevs, strict=True):
            offsets = np.arange(max(start, n), stop)
            if not len(offsets):
                continue
            acc = np.zeros(len(offsets), dtype=np.int64)
            for i in range(n):
                acc += text[offsets - 1 - i] * _FACTORS[i]
            h = (acc ^ acc >> _FOLD) & self._mask
            order = np.argsort(h, kind="stable")
            h, offsets = h[order], offsets[order]
            head, prev = np.frombuffer(heads, dtype=np.int64), np.frombuffer(prevs, dtype=np.int64)
            before = head[h]
            again = np.flatnonzero(h[1:] == h[:-1])
            before[again + 1] = base + offsets[again]
            prev[at0 + offsets] = before
            head[h] = base + offsets  # of equal indices the last assignment stays: the latest position

    # -- reading ---------------------------------------------------------------------------------------

    def find(self, context: Sequence[int]) -> tuple[int, list[int]]:
        """Return the longest match length (0, 2..8 or 16) and the positions that follow such a match.

        context: the text's last tokens, LONGEST or fewer. Positions come latest first, ENOUGH at most.
        """
        m, acc, i = len(context), 0, 0
        hashes: list[int] = []
        for n in reversed(ORDERS):
            if m < n:
                break
            while i < n:
                i += 1
                acc += context[-i] * _FACTORS[i - 1]
            hashes.append((acc ^ acc >> _FOLD) & self._mask)
        tok, mask, floor = self._tok, self._mask, self.floor
        for k in range(len(ORDERS) - len(hashes), len(ORDERS)):
            n, prevs = ORDERS[k], self._prevs[k]
            v = self._heads[k][hashes[len(ORDERS) - 1 - k]]
            if v < floor:
                continue
            want = array("i", context[m - n :])
            found = []
            for _ in range(WALK):
                at = v & mask
                if tok[at - n : at] == want:
                    found.append(v)
                    if len(found) == ENOUGH:
                        break
                v = prevs[at]
                if v < floor:
                    break
            if found:
                return self._longest(found, context, n)
        return 0, []

    def _longest(self, found: list[int], context: Sequence[int], n: int) -> tuple[int, list[int]]:
        """Keep those of `found` (all match n tokens) whose match is longest."""
        tok, mask, within, m = self._tok, self._mask, self.chunk - 1, len(context)
        if n == ORDERS[0]:
            if m < LONGEST:
                return n, found
            want = array("i", context[m - LONGEST :])
            kept = [v for v in found if v & within >= LONGEST]
            long = [v for v in kept if tok[(v & mask) - LONGEST : v & mask] == want]
            return (LONGEST, long) if long else (n, found)
        best, kept = n, found
        for length in range(n + 1, min(2 * n, m + 1)):
            last = context[m - length]
            kept = [v for v in kept if v & within >= length and tok[(v & mask) - length] == last]
            if not kept:
                break
            best, found = length, kept
        return best, found

    def tag(self, position: int) -> int:
        """Return the tag of the text that a live position belongs to."""
        return self._tag[(position & self._mask) // self.chunk]

    def touch(self, position: int) -> None:
        """Mark the text around a position as used, so that it outlives the next turn of the ring."""
        if position >= self.floor:
            self._used[(position & self._mask) // self.chunk] = True

    def follow(self, positions: Sequence[int], limit: int) -> list[tuple[int, int, int]]:
        """Return up to `limit` (token, votes for it, votes in all): the majority path from live positions.

        Ties go to the position that comes first. A path ends with its chunk.
        """
        tok, out, runs = self._tok, [], []
        for v in positions:
            at = v & self._mask
            slot = at // self.chunk
            runs.append(tok[at : min(slot * self.chunk + self._length[slot], at + limit)])
        for depth in range(limit):
            if len(runs) == 1:
                out += [(t, 1, 1) for t in runs[0][depth:]]
                break
            votes = [run[depth] for run in runs if depth < len(run)]
            if not votes:
                break
            best, agree = votes[0], votes.count(votes[0])
            if agree == len(votes):
                runs = runs[:4]  # unanimous so far: four witnesses tell as much as eight
            else:
                best = max(votes, key=votes.count)
                agree = votes.count(best)
                runs = [run for run in runs if depth < len(run) and run[depth] == best]
            out.append((best, agree, len(votes)))
        return out

    # -- self-check ------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise AssertionError unless each live link leads to an earlier occurrence of the same hash."""
        live = range(self._next - self.slots, self._next)
        assert self.floor > 0
        assert all(0 <= c <= n <= self.chunk for c, n in zip(self._carried, self._length, strict=True))
        for n, heads, prevs in zip(ORDERS, self._heads, self._prevs, strict=True):
            for h in np.flatnonzero(np.frombuffer(heads, dtype=np.int64) >= self.floor).tolist():
                seen: set[int] = set()
                v = heads[h]
                while v >= self.floor:
                    at, offset = v & self._mask, v & (self.chunk - 1)
                    assert v // self.chunk in live
                    assert v not in seen, "a chain has a cycle"
                    seen.add(v)
                    assert n <= offset < self._length[at // self.chunk], "a link leads out of the text"
                    acc = sum(self._tok[at - 1 - i] * _FACTORS[i] for i in range(n))
                    assert (acc ^ acc >> _FOLD) & self._mask == h, "a link leads to another hash"
                    v = prevs[at]
