"""Whatever requests do, the cache proposes only text that it may know, in bounded memory."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sgl_spec.draft.base import SourceOptions
from sgl_spec.draft.cache import BYTES_PER_TOKEN, DraftCache

CAPACITY = 1024  # tokens: small, so that texts are evicted
TENANTS = ("a", "b", "c")  # one more than fit
LIVE = 6


def contains(text: list[int], part: list[int]) -> bool:
    first = part[0]
    return any(text[i] == first and text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


class CacheMachine(RuleBasedStateMachine):
    """Each tenant speaks tokens of its own hundred, so that foreign text is recognised at once."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = DraftCache(4 * CAPACITY * BYTES_PER_TOKEN, max_tenants=2)
        self.live: dict[str, tuple[SourceOptions, list[int]]] = {}  # request -> its text since the last flush
        self.tails: dict[str, list[int]] = {}  # request -> its last tokens
        self.known: dict[str, list[list[int]]] = {}  # namespace -> texts that may be proposed
        self.count = 0

    @initialize()
    def start(self) -> None:
        self.begin(0, "p", True, True, [0, 1, 2, 3] * 8)

    @precondition(lambda self: len(self.live) < LIVE)
    @rule(
        tenant=st.integers(0, 2),
        program=st.sampled_from("pq"),
        cache=st.booleans(),
        lookup=st.booleans(),
        prompt=st.lists(st.integers(0, 3), max_size=200),
    )
    def begin(self, tenant: int, program: str, cache: bool, lookup: bool, prompt: list[int]) -> None:
        rid = f"r{self.count}"
        self.count += 1
        options = SourceOptions(TENANTS[tenant], program, cache=cache, prompt_lookup=lookup)
        text = [100 * tenant + t for t in prompt]
        self.cache.begin(rid, text, options)
        self.live[rid] = options, text
        self.tails[rid] = text[-2:]
        if cache:
            self.known.setdefault(options.namespace, []).append(text)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), limit=st.integers(0, 9), emitted=st.lists(st.integers(0, 3), max_size=40))
    def round(self, data: st.DataObject, limit: int, emitted: list[int]) -> None:
        rid = data.draw(st.sampled_from(sorted(self.live)))
        options, text = self.live[rid]
        base = 100 * TENANTS.index(options.namespace)
        prefix = data.draw(st.lists(st.integers(0, 3).map(lambda t: base + t), max_size=3))
        proposal = self.cache.draft(rid, limit, prefix)
        assert len(proposal.tokens) == len(proposal.acceptance) == len(proposal.sources) <= limit
        assert all(0 < a < 1 for a in proposal.acceptance)
        if proposal.tokens:
            assert all(base <= t < base + 100 for t in proposal.tokens), "another tenant's text"
            run = [*self.tails[rid], *prefix][-2:] + proposal.tokens
            texts = self.known.get(options.namespace, []) if options.cache else [text]
            assert any(contains(known, run) for known in texts)
            if not options.cache:
                assert options.prompt_lookup
                assert set(proposal.sources) == {"prompt"}
        self.cache.draft(rid, limit)
        tokens = [base + t for t in emitted] + self.cache.draft(rid, 2).tokens
        self.cache.accept(rid, tokens)
        text.extend(tokens)
        self.tails[rid] = [*self.tails[rid], *tokens][-2:]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.live)))
        self.cache.end(rid)
        del self.live[rid]

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        self.known.clear()
        for rid, (options, _) in self.live.items():
            fresh: list[int] = []
            self.live[rid] = options, fresh
            if options.cache:
                self.known.setdefault(options.namespace, []).append(fresh)

    @invariant()
    def sound(self) -> None:
        self.cache.check_integrity()
        assert self.cache.nbytes() <= (4 * CAPACITY + len(self.live) * 4096) * BYTES_PER_TOKEN


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
