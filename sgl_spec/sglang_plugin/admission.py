"""Request options are checked where SGLang checks sampling parameters: a wrong one is a 400, not a dead scheduler."""

from typing import Any

from sglang.srt.sampling.sampling_params import SamplingParams

from sgl_spec.config import RequestOptions
from sgl_spec.errors import ConfigError
from sgl_spec.sglang_plugin.requests import OPTIONS_KEY


def check_options(custom_params: Any, vocab_size: int) -> None:
    """Raise ConfigError, which is a ValueError, for options that could not be honoured."""
    given = custom_params.get(OPTIONS_KEY) if isinstance(custom_params, dict) else None
    if given is None:
        return
    prediction = RequestOptions.parse(given).prediction
    if isinstance(prediction, tuple) and prediction and max(prediction) >= vocab_size:
        raise ConfigError(
            f"prediction holds the token id {max(prediction)}, and the target has {vocab_size} tokens: "
            "send ids of the target's tokenizer, or text"
        )


def install() -> None:
    """Check ours after SGLang's own checks of a request."""
    original = SamplingParams.verify

    def verify(self: SamplingParams, vocab_size: int) -> None:
        original(self, vocab_size)
        check_options(self.custom_params, vocab_size)

    SamplingParams.verify = verify
