"""Guesses from text that was seen before: the request's own (prompt lookup) and that of other requests.

One index per namespace holds prompts and accepted outputs as they are emitted, so that concurrent forks help
each other. A guess follows the longest earlier occurrence of the request's last tokens; among occurrences of
that length the request's own text goes before its program's, and that before the rest of the namespace.
Rejected guesses are not kept: what the target said instead is known, and that is what will be accepted.

Isolation: a request only touches the index and the statistics of its own namespace, so neither text nor
timing depends on what other tenants said. With `cache=False`, or while `max_tenants` other tenants are live,
a request searches a private index of its own text that ends with it.

Memory: half of `memory_bytes` for the default namespace "", the other half in equal shares for `max_tenants`
named ones, of which the least recently used idle one makes room. A share is allocated when its namespace is
first used and never grows; within it, text that was not used since it was written goes first. Private indexes
come on top: BYTES_PER_TOKEN times (tokens of the context + PRIVATE_ROOM, rounded up to a power of two).
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from sgl_spec.draft.base import CACHE, PROMPT, Proposal, SourceOptions
from sgl_spec.draft.calibration import INDEX_PRIOR, NAMESPACE, OWN, PROGRAM, Calibration, Cells, cell_of
from sgl_spec.draft.index import LONGEST, OVERLAP, SuffixIndex, Writer
from sgl_spec.errors import ConfigError, SpecError

BYTES_PER_TOKEN = SuffixIndex.BYTES_PER_TOKEN
MIN_CAPACITY = 1024  # tokens of a share
PRIVATE_ROOM = 2048  # tokens of output that a private index holds beside the prompt
MAX_PRIVATE = 1 << 16  # tokens; a longer context is searched in its last part
BLOCK = 32  # tokens per block of a prompt, for recognising shared prefixes


class _Space:
    """What one namespace shares."""

    def __init__(self, capacity: int) -> None:
        self.index = SuffixIndex(capacity, min(256, capacity // 16))
        self.calibration = Calibration()
        self.live = 0  # requests
        self.blocks: dict[int, tuple[int, ...]] = {}  # hash of a prompt's leading blocks -> their chunks


@dataclass(slots=True)
class _Guess:
    """A proposed run that waits for the emitted tokens to be scored."""

    prefix: list[int]  # hypothetical tokens that it follows
    tokens: list[int]
    cells: list[int]
    position: int


@dataclass(slots=True)
class _Request:
    options: SourceOptions
    index: SuffixIndex
    cells: Cells
    writer: Writer
    space: _Space | None  # None: the index is private
    tail: list[int]
    own: set[int] = field(default_factory=set)  # chunks that hold its text
    guesses: list[_Guess] = field(default_factory=list)


class DraftCache:
    """A host source ("prompt" and "cache") over suffix indexes; safe to call from several threads."""

    def __init__(self, memory_bytes: int = 64 << 20, max_tenants: int = 7) -> None:
        if max_tenants < 1:
            raise ConfigError(f"max_tenants={max_tenants} leaves no room for a namespace: give 1 or more.")
        self._default = memory_bytes // 2 // BYTES_PER_TOKEN  # tokens
        self._share = memory_bytes // 2 // max_tenants // BYTES_PER_TOKEN
        if self._share < MIN_CAPACITY:
            least = 2 * max_tenants * MIN_CAPACITY * BYTES_PER_TOKEN
            raise ConfigError(
                f"A draft cache of {memory_bytes} bytes is too small for {max_tenants} tenants: "
                f"give {least} or more, or fewer tenants."
            )
        self._max_tenants = max_tenants
        self._spaces: OrderedDict[str, _Space] = OrderedDict()
        self._space("")  # tens of milliseconds for a large share: at start, not in the first request
        self._requests: dict[str, _Request] = {}
        self._lock = threading.RLock()

    def __contains__(self, rid: str) -> bool:
        return rid in self._requests

    def begin(self, rid: str, context_ids: Sequence[int], options: SourceOptions) -> None:
        """Start a request; its context is indexed, except the leading blocks that are known already."""
        with self._lock:
            if rid in self._requests:
                raise SpecError(f"Request {rid!r} has begun already; end it before it begins again.")
            context = list(context_ids)
            tail = context[-LONGEST:]
            space = self._space(options.namespace) if options.cache else None
            if space:
                writer = Writer(tag=zlib.crc32(options.program.encode()))
                cells = space.calibration.cells(options.program, options.temperature)
                request = _Request(options, space.index, cells, writer, space, tail)
                space.live += 1
                self._write_prompt(request, space, context)
            else:
                size = min(MAX_PRIVATE, 1 << (len(context) + PRIVATE_ROOM - 1).bit_length())
                request = _Request(options, SuffixIndex(size), Cells(INDEX_PRIOR), Writer(), None, tail)
                request.index.append(request.writer, context[-size // 2 :])
            self._requests[rid] = request

    def _space(self, namespace: str) -> _Space | None:
        """Return the namespace's space; None when all that fit are in use by live requests."""
        space = self._spaces.get(namespace)
        if space is None:
            tenants = [name for name in self._spaces if name]
            if namespace and len(tenants) >= self._max_tenants:
                idle = next((name for name in tenants if not self._spaces[name].live), None)
                if idle is None:
                    return None
                del self._spaces[idle]
            tokens = self._share if namespace else self._default
            space = self._spaces[namespace] = _Space(1 << (tokens.bit_length() - 1))
        self._spaces.move_to_end(namespace)
        return space

    def _write_prompt(self, request: _Request, space: _Space, context: list[int]) -> None:
        """Index a prompt from its first unknown block on; what is known counts as the request's own text."""
        index = space.index
        oldest = index.floor // index.chunk
        keys, known, key = [], 0, 0
        for i in range(BLOCK, len(context) + 1, BLOCK):
            key = hash((key, *context[i - BLOCK : i]))
            keys.append(key)
            chunks = space.blocks.get(key)
            if chunks and chunks[0] >= oldest and known == i - BLOCK:
                known = i
                request.own = set(chunks)
        start = max(0, known - OVERLAP, len(context) - index.capacity // 2)
        if start < len(context):
            index.append(request.writer, context[start : start + 1])
            first = request.writer.chunk
            index.append(request.writer, context[start + 1 :])
            request.own.update(range(first, request.writer.chunk + 1))
        if len(space.blocks) > index.capacity // BLOCK:
            space.blocks = {k: c for k, c in space.blocks.items() if c[0] >= oldest}
        own = tuple(sorted(request.own))
        space.blocks.update(dict.fromkeys(keys[known // BLOCK :], own))

    def draft(self, rid: str, limit: int, prefix: Sequence[int] = ()) -> Proposal:
        """Guess up to `limit` tokens after the request's text plus `prefix`."""
        with self._lock:
            request = self._get(rid)
            if not prefix:
                request.guesses.clear()
            proposal = Proposal()
            if limit <= 0:
                return proposal
            index = request.index
            context = [*request.tail, *prefix][-LONGEST:] if prefix else request.tail
            length, positions = index.find(context)
            if not positions:
                return proposal
            level, positions = self._nearest(request, positions)
            if not positions:
                return proposal
            path = index.follow(positions, limit)
            cells = [cell_of(level, length + i, agree, of) for i, (_, agree, of) in enumerate(path)]
            proposal.tokens = [step[0] for step in path]
            estimate = request.cells.estimate
            proposal.acceptance = [estimate[c] for c in cells]
            proposal.sources = [PROMPT if level == OWN else CACHE] * len(path)
            request.guesses.append(_Guess(list(prefix), proposal.tokens, cells, positions[0]))
            return proposal

    def _nearest(self, request: _Request, positions: list[int]) -> tuple[int, list[int]]:
        """Return the level of the nearest occurrences, and those."""
        if request.space is None:
            return OWN, positions if request.options.prompt_lookup else []
        index, own = request.index, request.own
        mine = [v for v in positions if v // index.chunk in own]
        if mine and request.options.prompt_lookup:
            return OWN, mine
        others = [v for v in positions if v not in mine] if mine else positions
        same = [v for v in others if index.tag(v) == request.writer.tag]
        return (PROGRAM, same) if same else (NAMESPACE, others)

    def accept(self, rid: str, tokens: Sequence[int]) -> None:
        """Score the guesses since the last call against the emitted tokens, then index these."""
        with self._lock:
            request = self._get(rid)
            for guess in request.guesses:
                self._score(request, guess, tokens)
            request.guesses.clear()
            request.index.append(request.writer, tokens)
            request.own.add(request.writer.chunk)
            request.tail = [*request.tail, *tokens][-LONGEST:]

    @staticmethod
    def _score(request: _Request, guess: _Guess, tokens: Sequence[int]) -> None:
        """Count each guess whose whole condition was emitted; the first wrong one ends the run."""
        start = len(guess.prefix)
        if list(tokens[:start]) != guess.prefix:
            return
        for token, cell, emitted in zip(guess.tokens, guess.cells, tokens[start:], strict=False):
            request.cells.observe(cell, token == emitted)
            if token != emitted:
                return
            request.index.touch(guess.position)

    def end(self, rid: str) -> None:
        """Forget the request; its text stays in its namespace's index."""
        with self._lock:
            request = self._get(rid)
            del self._requests[rid]
            if request.space:
                request.space.live -= 1

    def flush(self) -> None:
        """Empty every index. Live requests go on with what they say from now; statistics stay (no text)."""
        with self._lock:
            for space in self._spaces.values():
                space.index.clear()
                space.blocks.clear()
            for request in self._requests.values():
                request.index.clear()
                request.own.clear()
                request.guesses.clear()

    def nbytes(self) -> int:
        """Return the bytes of all indexes."""
        with self._lock:
            private = [r.index for r in self._requests.values() if r.space is None]
            return sum(i.nbytes() for i in [*private, *(s.index for s in self._spaces.values())])

    def check_integrity(self) -> None:
        """Raise AssertionError when an index or the bookkeeping around it is inconsistent."""
        with self._lock:
            assert sum(bool(name) for name in self._spaces) <= self._max_tenants
            for space in self._spaces.values():
                space.index.check_integrity()
                assert space.live == sum(r.space is space for r in self._requests.values())
            for request in self._requests.values():
                if request.space is None:
                    request.index.check_integrity()

    def _get(self, rid: str) -> _Request:
        try:
            return self._requests[rid]
        except KeyError:
            raise SpecError(f"Request {rid!r} has not begun or has ended; call begin() first.") from None
