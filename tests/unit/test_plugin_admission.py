"""Requests that would kill the scheduler are refused with a sentence."""

from types import SimpleNamespace

import pytest
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.sampling.sampling_params import SamplingParams

from sgl_spec.errors import ConfigError
from sgl_spec.sglang_plugin.admission import (
    ONE_EACH,
    check_logprobs,
    check_options,
    check_prediction,
    check_prompt,
    check_single,
    install,
)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="prompt is empty"):
        check_prompt(SimpleNamespace(), [], 10)
    check_prompt(SimpleNamespace(), [1], 10)
    check_prompt(SimpleNamespace(input_embeds=[[0.5]]), [], 10)
    check_prompt(SimpleNamespace(), None, 10)


@pytest.mark.parametrize(("ids", "named"), [([3, 10], 10), ([-1, 3], -1), ([3, 10**30], 10)])
def test_ids_that_the_target_does_not_have_are_refused(ids: list[int], named: int) -> None:
    """The fused forward would read its embedding from anywhere."""
    with pytest.raises(ConfigError, match=f"input_ids holds {named}"):
        check_prompt(SimpleNamespace(), ids, 10)
    check_prompt(SimpleNamespace(), [0, 9], 10)


def test_replaced_embeddings_are_refused() -> None:
    with pytest.raises(ConfigError, match="positional_embed_overrides is not supported"):
        check_prompt(SimpleNamespace(positional_embed_overrides={}), [1], 10)
    check_prompt(SimpleNamespace(positional_embed_overrides=None), [1], 10)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"top_logprobs_num": 11}, "top_logprobs_num=11 is out of range: use 0 to 10"),
        ({"top_logprobs_num": -1}, "top_logprobs_num=-1"),
        ({"token_ids_logprob": [3, 10]}, "token_ids_logprob holds 10"),
        ({"token_ids_logprob": [-1]}, "token_ids_logprob holds -1"),
        ({"token_ids_logprob": [[1]]}, "token_ids_logprob holds"),
    ],
)
def test_logprobs_of_tokens_that_do_not_exist_are_refused(asked: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_logprobs(SimpleNamespace(**asked), vocab_size=10)


def test_other_logprobs_are_asked_for() -> None:
    check_logprobs(SimpleNamespace(top_logprobs_num=10, token_ids_logprob=[0, 9]), vocab_size=10)
    check_logprobs(SimpleNamespace(top_logprobs_num=0, token_ids_logprob=None), vocab_size=10)
    check_logprobs(SimpleNamespace(), vocab_size=10)


def test_a_predicted_id_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="token id 10"):
        check_options({"sgl_spec": {"prediction": [3, 10]}}, vocab_size=10)
    check_options({"sgl_spec": {"prediction": [3, 9]}}, vocab_size=10)
    check_options({"other": 1}, vocab_size=10)
    check_options(None, vocab_size=10)


def test_a_predicted_text_needs_a_tokenizer() -> None:
    def asked(given: object) -> SimpleNamespace:
        return SimpleNamespace(sampling_params={"custom_params": {"sgl_spec": given}})

    with pytest.raises(ConfigError, match="skip_tokenizer_init: send it as a list of token ids"):
        check_prediction(asked({"prediction": "text"}), None)
    check_prediction(asked({"prediction": "text"}), object())
    check_prediction(asked({"prediction": [3, 4]}), None)
    check_prediction(asked(None), None)
    check_prediction(SimpleNamespace(), None)


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_list_of_values_for_one_text_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is a list"):
        check_single(SimpleNamespace(**{name: [1, 2]}))
    check_single(SimpleNamespace(**{name: 1}))


def test_sglang_asks_before_it_reads_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `install`, SGLang's own functions refuse what the checks refuse."""
    for owner, name in (
        (GenerateReqInput, "_normalize_single_inputs"),
        (SamplingParams, "verify"),
        (TokenizerManager, "_validate_one_request"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # undone at the end
    install()
    with pytest.raises(ConfigError, match="rid is a list"):
        GenerateReqInput(text="a", rid=["x", "y"]).normalize_batch_and_arguments()
    manager = SimpleNamespace(model_config=SimpleNamespace(vocab_size=10), tokenizer=None)
    with pytest.raises(ConfigError, match="input_ids holds 10"):
        TokenizerManager._validate_one_request(manager, SimpleNamespace(), [3, 10])
