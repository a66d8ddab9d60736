"""The suffix index finds true, longest occurrences, however texts interleave and chunks are recycled."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_spec.draft.index import LONGEST, SECOND_CHANCES, SuffixIndex, Writer

tokens = st.lists(st.integers(0, 3), max_size=120)
relaxed = settings(max_examples=60, deadline=None, derandomize=True)


def pieces(text: list[int], cuts: list[int]) -> list[list[int]]:
    ends = sorted({min(c, len(text)) for c in cuts} | {len(text)})
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@relaxed
@given(tokens, st.lists(st.integers(1, 119), max_size=20))
def test_bulk_and_single_appends_give_the_same_tables(text: list[int], cuts: list[int]) -> None:
    whole, parts = SuffixIndex(256, 32), SuffixIndex(256, 32)
    whole.append(Writer(), text)
    writer = Writer()
    for piece in pieces(text, cuts):
        parts.append(writer, piece)
    assert whole._tok == parts._tok
    assert whole._heads == parts._heads
    assert whole._prevs == parts._prevs


@relaxed
@given(st.lists(st.tuples(st.integers(0, 2), tokens, st.booleans()), max_size=25), tokens)
def test_found_positions_follow_the_longest_match(
    steps: list[tuple[int, list[int], bool]], end: list[int]
) -> None:
    index = SuffixIndex(512, 32)
    writers = [Writer(tag=i) for i in range(3)]
    for who, text, touch in steps:
        index.append(writers[who], text)
        context = [*text, *end][-LONGEST:]
        length, positions = index.find(context)
        for v in positions:
            at = v % index.capacity
            assert v >= index.floor
            assert list(index._tok[at - length : at]) == context[len(context) - length :]
            if touch:
                index.touch(v)
        assert bool(positions) == bool(length)
        path = index.follow(positions, 9)
        assert all(1 <= agree <= of <= len(positions) for _, agree, of in path)
        assert bool(path) == bool(positions), "an occurrence without a continuation"
        index.check_integrity()
        assert index.size <= index.capacity


@relaxed
@given(tokens)
def test_follow_takes_the_majority_and_counts_it(text: list[int]) -> None:
    index = SuffixIndex(512, 256)
    index.append(Writer(), text)
    length, positions = index.find(text[-LONGEST:])
    if not positions:
        return
    first = [index._tok[v % index.capacity] for v in positions]
    token, agree, of = index.follow(positions, 1)[0]
    assert of == len(positions)
    assert agree == first.count(token) == max(first.count(t) for t in first)
    assert length <= LONGEST


def test_oldest_unused_text_goes_first() -> None:
    index = SuffixIndex(256, 32)
    index.append(Writer(), list(range(100, 132)))
    index.append(Writer(), list(range(200, 232)))
    _, positions = index.find(list(range(100, 108)))
    index.touch(positions[0])
    for i in range(7):
        index.append(Writer(), list(range(1000 + 100 * i, 1032 + 100 * i)))
    assert index.find(list(range(100, 108)))[0] == 8, "used text was forgotten"
    assert index.find(list(range(200, 208)))[0] == 0, "unused text was kept"
    index.check_integrity()


def test_second_chances_are_bounded() -> None:
    index = SuffixIndex(1024, 32)
    for i in range(32):
        index.append(Writer(), list(range(100 * i, 100 * i + 32)))
        index.touch(index.find(list(range(100 * i, 100 * i + 8)))[1][0])
    before = index.floor
    index.append(Writer(), [1, 2, 3])
    assert (index.floor - before) // 32 == SECOND_CHANCES + 1


def test_a_context_survives_the_end_of_a_chunk() -> None:
    index = SuffixIndex(256, 32)
    writer = Writer()
    text = list(range(1, 100))
    index.append(writer, text)
    for i in range(2, 99):
        length, positions = index.find(text[max(0, i - LONGEST) : i])
        assert length >= min(i, 8)
        assert index.follow(positions, 1)[0][0] == text[i]


@pytest.mark.parametrize(("capacity", "chunk"), [(1000, 32), (64, 64), (256, 16), (256, 48)])
def test_sizes_are_checked(capacity: int, chunk: int) -> None:
    with pytest.raises(ValueError, match="powers of two"):
        SuffixIndex(capacity, chunk)
