"""KV slots are reserved when a request runs short of what a round needs, and SGLang's other duties are kept."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def sglang(monkeypatch):
    """`slots_ahead` in front of a recorder, and of a pool that is full."""
    from sglang.srt.mem_cache import kv_cache_configurator

    from sgl_spec.sglang_plugin import slots_ahead

    def has_room(batch, selected_indices=None):
        batch.calls.append(f"room for {selected_indices or 'all'}")
        return False

    monkeypatch.setattr(slots_ahead.eagle_utils, "eagle_prepare_for_decode", lambda b: b.calls.append("reserve"))
    monkeypatch.setattr(slots_ahead.ScheduleBatch, "check_decode_mem", has_room)
    monkeypatch.setattr(kv_cache_configurator, "get_req_to_token_extra_context_len", lambda: 0)
    return slots_ahead


def batch(*slots: tuple[int, int], penalties: bool = False) -> SimpleNamespace:
    """Requests with (allocated, committed) slots."""
    calls: list[str] = []
    return SimpleNamespace(
        reqs=[
            SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=a, kv_committed_len=c), decode_batch_idx=0)
            for a, c in slots
        ],
        sampling_info=SimpleNamespace(penalizer_orchestrator=SimpleNamespace(is_required=penalties)),
        maybe_evict_swa=lambda: calls.append("evict"),
        calls=calls,
    )


@pytest.mark.parametrize(
    ("slots", "penalties", "reserves"),
    [
        ([(109, 100)], False, False),
        ([(108, 100)], False, True),
        ([(130, 100), (59, 50)], False, False),
        ([(130, 100), (58, 50)], False, True),
        ([(130, 100)], True, True),
    ],
)
def test_slots_are_reserved_when_a_request_runs_short(slots, penalties, reserves, sglang):
    made = batch(*slots, penalties=penalties)
    sglang.install(9)
    sglang.eagle_utils.eagle_prepare_for_decode(made)
    assert made.calls == ["reserve" if reserves else "evict"]
    assert [req.decode_batch_idx for req in made.reqs] == [0 if reserves else 1] * len(made.reqs)
    made.calls.clear()
    assert sglang.ScheduleBatch.check_decode_mem(made) is not reserves  # the pool of this test has no room
    assert made.calls == (["room for all"] if reserves else [])


def test_room_is_asked_for_where_requests_are_retracted(sglang):
    made = batch((109, 100), (109, 100))
    sglang.install(9)
    assert not sglang.ScheduleBatch.check_decode_mem(made, selected_indices=[0])
    assert made.calls == ["room for [0]"]


@pytest.mark.parametrize(("theirs", "reserved", "made"), [(14, 20, 20), (40, 20, 40)])
def test_a_row_of_the_table_holds_what_is_reserved_at_the_end_of_the_context(
    theirs, reserved, made, sglang, monkeypatch
):
    configurator = sglang.kv_cache_configurator
    monkeypatch.setattr(configurator, "get_req_to_token_extra_context_len", lambda: theirs)
    monkeypatch.setattr(sglang, "get_alloc_reserve_per_decode", lambda: reserved)
    sglang.install(9)
    assert configurator.get_req_to_token_extra_context_len() == made
