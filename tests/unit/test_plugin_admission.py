"""Requests that would kill the scheduler are refused with a sentence."""

from types import SimpleNamespace

import pytest

from sgl_spec.errors import ConfigError
from sgl_spec.sglang_plugin.admission import check_options, check_prediction, check_prompt


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="prompt is empty"):
        check_prompt(SimpleNamespace(), [])
    check_prompt(SimpleNamespace(), [1])
    check_prompt(SimpleNamespace(input_embeds=[[0.5]]), [])
    check_prompt(SimpleNamespace(), None)


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
