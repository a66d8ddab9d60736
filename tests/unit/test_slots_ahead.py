"""KV slots are reserved when a request runs short of what a round needs, and SGLang's other duties are kept."""

from types import SimpleNamespace

import pytest


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
    ("made", "reserves"),
    [
        (batch((109, 100)), False),
        (batch((108, 100)), True),
        (batch((130, 100), (59, 50)), False),
        (batch((130, 100), (58, 50)), True),
        (batch((130, 100), penalties=True), True),
    ],
)
def test_slots_are_reserved_when_a_request_runs_short(made, reserves, monkeypatch):
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.speculative import eagle_utils

    from sgl_spec.sglang_plugin import slots_ahead

    monkeypatch.setattr(eagle_utils, "eagle_prepare_for_decode", lambda batch: batch.calls.append("reserve"))
    monkeypatch.setattr(kv_cache_configurator, "get_req_to_token_extra_context_len", lambda: 0)
    slots_ahead.install(9)
    eagle_utils.eagle_prepare_for_decode(made)
    assert made.calls == ["reserve" if reserves else "evict"]
    assert [req.decode_batch_idx for req in made.reqs] == [0 if reserves else 1] * len(made.reqs)


@pytest.mark.parametrize(("theirs", "reserved", "made"), [(14, 20, 20), (40, 20, 40)])
def test_a_row_of_the_table_holds_what_is_reserved_at_the_end_of_the_context(theirs, reserved, made, monkeypatch):
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.speculative import eagle_utils

    from sgl_spec.sglang_plugin import slots_ahead

    monkeypatch.setattr(eagle_utils, "eagle_prepare_for_decode", lambda batch: None)
    monkeypatch.setattr(kv_cache_configurator, "get_req_to_token_extra_context_len", lambda: theirs)
    monkeypatch.setattr(slots_ahead, "get_alloc_reserve_per_decode", lambda: reserved)
    slots_ahead.install(9)
    assert kv_cache_configurator.get_req_to_token_extra_context_len() == made
