"""Slots of a draft with its own tokens: none is lost, none is shared by texts that differ, the least recent go."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_spec.draft.own_kv import OwnKv, common

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
STEPS = st.lists(st.tuples(st.sampled_from("abcdef"), TEXTS, st.integers(0, 3), st.booleans()), max_size=30)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_every_row_reads_its_own_text(steps: list[tuple[str, list[int], int, bool]]) -> None:
    kv = OwnKv(torch.zeros(4, 14, dtype=torch.int32), size=30)
    written: dict[int, tuple[int, ...]] = {}  # slot -> the text that ends in it
    for rid, ids, room, new_round in steps:
        if new_round:
            kv.begin_round()
        row = kv.fit(rid, ids, room)
        kv.check_integrity()
        if row is None:
            continue
        assert len(row.ids) < len(ids)
        assert len(row.slots) == len(ids) + room
        for j, slot in enumerate(row.slots[: len(row.ids)]):
            assert written[slot] == tuple(ids[: j + 1])
        for j in range(len(row.ids), len(ids)):
            written[row.slots[j]] = tuple(ids[: j + 1])
        row.ids += ids[len(row.ids) :]
        kv.check_integrity()
    kv.forget_all()
    kv.check_integrity()
    assert kv.read("a") == 0


def test_a_fork_shares_what_it_has_in_common() -> None:
    kv = OwnKv(torch.zeros(4, 20, dtype=torch.int32), size=20)
    first = kv.fit("a", [1, 2, 3, 4], 2)
    assert first is not None
    first.ids += [1, 2, 3, 4]
    fork = kv.fit("b", [1, 2, 3, 9, 9], 1)
    assert fork is not None
    assert fork.ids == [1, 2, 3]
    assert fork.slots[:3] == first.slots[:3]
    assert not set(fork.slots[3:]) & set(first.slots)


def test_rows_of_this_round_are_not_taken_away() -> None:
    kv = OwnKv(torch.zeros(4, 20, dtype=torch.int32), size=10)
    kv.begin_round()
    assert kv.fit("a", [1] * 6, 1) is not None
    assert kv.fit("b", [2] * 6, 1) is None
    kv.begin_round()
    assert kv.fit("b", [2] * 6, 1) is not None
    assert kv.read("a") == 0


def test_texts_past_the_table_are_refused() -> None:
    assert OwnKv(torch.zeros(4, 8, dtype=torch.int32), size=20).fit("a", [1] * 6, 3) is None


@given(TEXTS, TEXTS)
def test_common_beginning(a: list[int], b: list[int]) -> None:
    n = common(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]
