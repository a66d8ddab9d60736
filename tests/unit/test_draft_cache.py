"""The cache's behaviour on small texts: levels, privacy, tenants, calibration, flush."""

from __future__ import annotations

import random
import threading

import pytest

from sgl_spec.draft.base import SourceOptions
from sgl_spec.draft.cache import BLOCK, BYTES_PER_TOKEN, MIN_CAPACITY, DraftCache
from sgl_spec.draft.calibration import FORGET, INDEX_PRIOR, MAX_KEYS, Calibration, Cells
from sgl_spec.errors import ConfigError, SpecError

SMALL = MIN_CAPACITY * BYTES_PER_TOKEN
TEXT = list(range(50, 90))


def spoken(source: DraftCache, rid: str, text: list[int], **options: object) -> None:
    source.begin(rid, text[:4], SourceOptions(**options))  # type: ignore[arg-type]
    source.accept(rid, text[4:])
    source.end(rid)


def asked(source: DraftCache, context: list[int], limit: int = 8, **options: object) -> tuple[list[int], set[str]]:
    source.begin("asks", context, SourceOptions(**options))  # type: ignore[arg-type]
    proposal = source.draft("asks", limit)
    source.end("asks")
    return proposal.tokens, set(proposal.sources)


def test_prompt_lookup_needs_no_other_request() -> None:
    assert asked(DraftCache(), [*TEXT, 1, 2, 50, 51], 3) == ([52, 53, 54], {"prompt"})
    assert asked(DraftCache(), [*TEXT, 1, 2, 50, 51], 3, cache=False) == ([52, 53, 54], {"prompt"})
    assert asked(DraftCache(), [*TEXT, 1, 2, 50, 51], 3, prompt_lookup=False)[0] == []
    assert asked(DraftCache(), [*TEXT, 1, 2, 50, 51], 3, prompt_lookup=False, cache=False)[0] == []


def test_others_outputs_are_reused_within_a_namespace_only() -> None:
    cache = DraftCache()
    spoken(cache, "a", TEXT)
    assert asked(cache, [7, 60, 61], 3) == ([62, 63, 64], {"cache"})
    assert asked(cache, [7, 60, 61], 3, namespace="other")[0] == []
    assert asked(cache, [7, 60, 61], 3, cache=False)[0] == []


def test_a_private_request_leaves_nothing() -> None:
    cache = DraftCache()
    spoken(cache, "a", TEXT, cache=False)
    assert asked(cache, [7, 60, 61], 3)[0] == []


def test_a_running_request_helps_its_forks() -> None:
    cache = DraftCache()
    cache.begin("a", [1, 2, 3], SourceOptions())
    cache.accept("a", TEXT)
    assert asked(cache, [9, 50, 51], 2)[0] == [52, 53]


def test_own_text_goes_before_the_programs_and_that_before_the_rest() -> None:
    cache = DraftCache()
    spoken(cache, "a", [1, 2, 3, 10, 0, 0, 0], program="p")
    spoken(cache, "b", [1, 2, 3, 20, 0, 0, 0], program="q")
    assert asked(cache, [9, 1, 2, 3], 1, program="p") == ([10], {"cache"})
    assert asked(cache, [9, 1, 2, 3], 1, program="new")[1] == {"cache"}
    assert asked(cache, [1, 2, 3, 30, 1, 2, 3], 1, program="p") == ([30], {"prompt"})


def test_counts_make_the_guess() -> None:
    cache = DraftCache()
    for i, word in enumerate([7, 8, 8, 8, 7]):
        spoken(cache, f"r{i}", [1, 2, 3, word, 100 + i, 200 + i])
    cache.begin("x", [9, 1, 2, 3], SourceOptions())
    many = cache.draft("x", 1)
    assert many.tokens == [8]
    assert many.acceptance[0] < INDEX_PRIOR[-1]


def test_estimates_become_honest() -> None:
    rng = random.Random(0)
    cache = DraftCache()
    text = [rng.randrange(40) for _ in range(400)]
    estimates, hits = [], 0
    for i in range(60):
        cache.begin(f"r{i}", [60, 61], SourceOptions(program="noisy"))
        for t in text[20 * (i % 15) : 20 * (i % 15) + 20]:
            emitted = t if rng.random() < 0.7 else 41 + rng.randrange(9)
            guess = cache.draft(f"r{i}", 1)
            if i >= 30 and guess.tokens:
                estimates.append(guess.acceptance[0])
                hits += guess.tokens[0] == emitted
            cache.accept(f"r{i}", [emitted])
        cache.end(f"r{i}")
    assert abs(sum(estimates) - hits) < 0.1 * len(estimates)


def test_a_shared_prompt_is_kept_once_and_counts_as_own_text() -> None:
    cache = DraftCache()
    prompt = [i % 97 for i in range(0, 7 * 700, 7)]
    cache.begin("a", [*prompt, 500], SourceOptions())
    before = cache._spaces[""].index.size
    cache.begin("b", [*prompt, 501], SourceOptions())
    assert cache._spaces[""].index.size - before < 100
    cache.accept("b", [*prompt[5:7]])
    assert set(cache.draft("b", 3).sources) == {"prompt"}
    cache.check_integrity()


def test_guesses_after_a_hypothetical_prefix_are_scored_under_their_condition() -> None:
    cache = DraftCache()
    spoken(cache, "a", TEXT)
    cache.begin("x", [5], SourceOptions())
    assert cache.draft("x", 4).tokens == []
    assert cache.draft("x", 2, [50, 51]).tokens == [52, 53]
    cells = cache._requests["x"].cells
    before = list(cells.estimate)
    cache.accept("x", [50, 99, 52])
    assert cells.estimate == before
    cache.draft("x", 2, [50, 51])
    cache.accept("x", [50, 51, 52, 99])
    assert sum(a > b for a, b in zip(cells.estimate, before, strict=True)) == 1
    assert sum(a < b for a, b in zip(cells.estimate, before, strict=True)) == 1


def test_flush_empties_it_while_requests_go_on() -> None:
    cache = DraftCache()
    spoken(cache, "a", TEXT)
    cache.begin("x", [*TEXT, 1, 50, 51], SourceOptions())
    cache.flush()
    assert cache.draft("x", 3).tokens == []
    cache.accept("x", [7, 8, 9, 7, 8])
    assert cache.draft("x", 1).tokens == [9]
    cache.end("x")
    assert asked(cache, [0, 60, 61])[0] == []


def test_more_live_namespaces_than_fit_search_their_own_text() -> None:
    cache = DraftCache(2 * SMALL, max_tenants=1)
    cache.begin("a", TEXT, SourceOptions(namespace="a"))
    spoken(cache, "other", TEXT)
    assert asked(cache, [*TEXT, 50, 51], 1, namespace="b") == ([52], {"prompt"})
    assert sorted(cache._spaces) == ["", "a"]
    cache.end("a")
    assert asked(cache, [*TEXT, 50, 51], 1, namespace="b") == ([52], {"prompt"})
    assert sorted(cache._spaces) == ["", "b"], "an idle namespace makes room"


def test_memory_does_not_grow_with_text() -> None:
    cache = DraftCache(3 * SMALL, max_tenants=1)
    rng = random.Random(1)
    for i in range(100):
        spoken(cache, f"r{i}", [rng.randrange(1000) for _ in range(200)])
        assert cache.nbytes() == SMALL
        assert len(cache._spaces[""].blocks) <= 1024
    cache.check_integrity()


def test_forgetting_bounds_what_a_cell_remembers() -> None:
    cells = Cells((0.5,))
    for _ in range(10 * FORGET):
        cells.observe(0, True)
    for _ in range(FORGET):
        cells.observe(0, False)
    assert cells.estimate[0] < 0.4


def test_wrong_use_is_one_sentence() -> None:
    cache = DraftCache()
    cache.begin("a", [1], SourceOptions())
    with pytest.raises(SpecError, match="'a' has begun already"):
        cache.begin("a", [1], SourceOptions())
    with pytest.raises(SpecError, match="'b' has not begun"):
        cache.draft("b", 1)
    with pytest.raises(ConfigError, match=f"of 5 bytes is too small for 1 tenants: give {2 * SMALL} or more"):
        DraftCache(5, max_tenants=1)
    with pytest.raises(ConfigError, match="max_tenants=0"):
        DraftCache(max_tenants=0)


def test_threads_do_not_tear_it() -> None:
    cache = DraftCache(2 * SMALL, max_tenants=1)
    failures: list[BaseException] = []

    def speak(who: int) -> None:
        rng = random.Random(who)
        try:
            for i in range(30):
                rid = f"{who}-{i}"
                cache.begin(rid, [rng.randrange(5) for _ in range(20)], SourceOptions())
                for _ in range(5):
                    cache.accept(rid, cache.draft(rid, 4).tokens or [rng.randrange(5)])
                cache.end(rid)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=speak, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    cache.check_integrity()


def test_programs_and_namespaces_in_the_estimates_are_bounded() -> None:
    calibration = Calibration(INDEX_PRIOR)
    first = calibration.cells("p0", 0.0)
    for n in range(MAX_KEYS):
        calibration.cells(f"p{n}", 0.0)
        assert calibration.cells("p0", 0.0) is first  # in use: kept
    calibration.cells("one more", 0.5)
    assert calibration.cells("p0", 0.0) is first
    assert calibration.cells("p0", 0.5) is not first
    assert calibration.cells("p0", 0.9) is not calibration.cells("p0", 0.8)


def test_a_short_text_writes_nothing_but_is_searched() -> None:
    cache = DraftCache()
    cache.begin("empty", [], SourceOptions())
    cache.accept("empty", [1, 2, 3, 1, 2])
    assert cache.draft("empty", 1).tokens == [3]


def test_blocks_of_forgotten_text_are_dropped() -> None:
    cache = DraftCache(2 * SMALL, max_tenants=1)
    for n in range(60):
        cache.begin(str(n), [n, *range(1000 + 997 * n, 1000 + 997 * n + 700)], SourceOptions())
        cache.end(str(n))
    space = cache._spaces[""]
    assert len(space.blocks) <= space.index.capacity // BLOCK + 700 // BLOCK
