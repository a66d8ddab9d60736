"""Requests are checked where SGLang checks them: what would kill the scheduler is a 400 with a sentence."""

from typing import Any

from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.sampling.sampling_params import SamplingParams

from sgl_spec.config import RequestOptions, shown
from sgl_spec.errors import ConfigError
from sgl_spec.sglang_plugin.requests import OPTIONS_KEY

ONE_EACH = (
    "rid",
    "sampling_params",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_sampling_mask",
    "return_hidden_states",
    "custom_logit_processor",
)
"""Fields that are lists for a list of texts only: SGLang answers 500 to a list for one."""


def check_single(request: Any) -> None:
    """Raise ConfigError where a request of one text gives a list of values."""
    for name in ONE_EACH:
        if isinstance(getattr(request, name, None), list):
            raise ConfigError(f"{name} is a list, and the request has one text: send one value, or a list of texts")


def check_options(custom_params: Any, vocab_size: int) -> None:
    """Raise ConfigError, which is a ValueError, for options that could not be honoured."""
    given = custom_params.get(OPTIONS_KEY) if isinstance(custom_params, dict) else None
    if given is None:
        return
    prediction = RequestOptions.parse(given).prediction
    if isinstance(prediction, tuple) and prediction and max(prediction) >= vocab_size:
        raise ConfigError(
            f"prediction holds the token id {shown(max(prediction))}, and the target has {vocab_size} tokens: "
            "send ids of the target's tokenizer, or text"
        )


def check_prompt(request: Any, input_ids: Any, vocab_size: int) -> None:
    """Raise ConfigError for a prompt of which SGLang's scheduler dies: no token, unknown ones, replaced embeddings."""
    if getattr(request, "positional_embed_overrides", None) is not None:
        raise ConfigError("positional_embed_overrides is not supported with sgl-spec: leave it out")
    if input_ids is not None and not len(input_ids) and getattr(request, "input_embeds", None) is None:
        raise ConfigError("The prompt is empty: send at least one token, for example the tokenizer's first one.")
    if input_ids is not None and len(input_ids) and not 0 <= min(input_ids) <= max(input_ids) < vocab_size:
        unknown = next(token for token in input_ids if not 0 <= token < vocab_size)
        raise ConfigError(
            f"input_ids holds {shown(unknown)}, and the target has {vocab_size} tokens: send ids of its tokenizer"
        )


def check_logprobs(request: Any, vocab_size: int) -> None:
    """Raise ConfigError for logprobs of tokens that the target does not have: SGLang's scheduler dies of them."""
    count, ids = getattr(request, "top_logprobs_num", None), getattr(request, "token_ids_logprob", None)
    if isinstance(count, int) and not 0 <= count <= vocab_size:
        raise ConfigError(f"top_logprobs_num={shown(count)} is out of range: use 0 to {vocab_size}")
    for token in ids if isinstance(ids, list) else ():
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ConfigError(
                f"token_ids_logprob holds {shown(token)}, and the target has {vocab_size} tokens: send ids below that"
            )


def check_prediction(request: Any, tokenizer: Any) -> None:
    """Raise ConfigError for a predicted text that no tokenizer can turn into ids."""
    params = getattr(request, "sampling_params", None)
    custom = params.get("custom_params") if isinstance(params, dict) else None
    given = custom.get(OPTIONS_KEY) if isinstance(custom, dict) else None
    if tokenizer is None and isinstance(given, dict) and isinstance(given.get("prediction"), str):
        raise ConfigError(
            "prediction is text, and this server was started with skip_tokenizer_init: send it as a list of token ids"
        )


def install() -> None:
    """Check ours beside SGLang's own checks of a request."""
    verify_parameters, validate_request = SamplingParams.verify, TokenizerManager._validate_one_request

    def verify(self: SamplingParams, vocab_size: int) -> None:
        verify_parameters(self, vocab_size)
        check_options(self.custom_params, vocab_size)

    def validate(self: TokenizerManager, obj: Any, input_ids: Any) -> None:
        check_prompt(obj, input_ids, self.model_config.vocab_size)
        check_logprobs(obj, self.model_config.vocab_size)
        check_prediction(obj, self.tokenizer)
        validate_request(self, obj, input_ids)

    normalize_single = GenerateReqInput._normalize_single_inputs

    def normalize(self: GenerateReqInput) -> None:
        check_single(self)
        normalize_single(self)

    GenerateReqInput._normalize_single_inputs = normalize
    SamplingParams.verify = verify
    TokenizerManager._validate_one_request = validate
