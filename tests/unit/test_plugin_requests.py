"""What the worker reads from a request of SGLang."""

from types import SimpleNamespace

from sgl_spec.sglang_plugin.requests import penalties_of


def request(eos: set[int] | None, tokenizer_eos: int | None, **params: object) -> SimpleNamespace:
    defaults = {
        "stop_token_ids": None,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
    }
    tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=tokenizer_eos)
    return SimpleNamespace(
        sampling_params=SimpleNamespace(**{**defaults, **params}), eos_token_ids=eos, tokenizer=tokenizer
    )


def test_min_new_tokens_without_an_eos_id() -> None:
    found = penalties_of(request(None, None, min_new_tokens=4))
    assert found is not None
    assert found.stop_ids == ()


def test_every_way_to_stop_is_held_back() -> None:
    found = penalties_of(request({7}, 2, min_new_tokens=4, stop_token_ids=[9]))
    assert found is not None
    assert found.stop_ids == (2, 7, 9)


def test_nothing_to_apply() -> None:
    assert penalties_of(request({7}, 2)) is None
