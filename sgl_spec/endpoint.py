"""SGLang's front end over a server with sgl-spec: request options, and faults of the stock one mended.

Stock code gives a chat model whose name it does not know a template that the model was never trained on; it
joins forks with "concate_and_append" through an address that the server no longer has, and waits forever; it
appends to the caller's own ``stop`` list on every run, so parameters are copied here before they are touched.
Stock ``SglSamplingParams`` has no field for request options.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint
from sglang.lang.interpreter import StreamExecutor
from sglang.lang.ir import SglGen, SglSamplingParams
from sglang.utils import http_request

from sgl_spec.chat_template import template_for
from sgl_spec.errors import ConfigError
from sgl_spec.request_options import current
from sgl_spec.server_error import assert_success

KEY = "sgl_spec"
WARM_UP = {
    "controller": "fixed",
    "num_speculative_tokens": 1,
    "draft_confidence": 0.0,
    "cache": False,
    "prompt_lookup": False,
    "program": "cache_prefix",
}


@dataclasses.dataclass
class SpecSamplingParams(SglSamplingParams):
    """SGLang's parameters and our options of one request."""

    spec_options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_srt_kwargs(self) -> dict[str, Any]:
        """Return what goes into ``sampling_params`` of ``/generate``."""
        kwargs = super().to_srt_kwargs()
        if self.spec_options:
            kwargs["custom_params"] = {KEY: self.spec_options}
        return kwargs


class SpecEndpoint(RuntimeEndpoint):
    """A server's address as a front-end backend. `bound` are options that hold for all its requests."""

    def __init__(self, base_url: str, api_key: str | None = None, bound: dict[str, Any] | None = None) -> None:
        super().__init__(base_url, api_key=api_key)
        self.chat_template = template_for(self.model_info["model_path"])
        self.support_concate_and_append = False  # forks are joined as text, which the radix cache knows
        self.bound = bound or {}

    @property
    def endpoint(self) -> "SpecEndpoint":
        """What SGLang takes as backend in the thread that starts a program: this, with its options bound."""
        view = object.__new__(SpecEndpoint)
        view.__dict__.update(self.__dict__)
        view.bound = {**self.bound, **current()}
        return view

    def cache_prefix(self, prefix_str: str) -> None:
        """Read a text into the KV cache of the target and of the draft: what begins with it later need not be read.

        SGLang calls this for the common beginning of a batch of programs. The draft reads when it first guesses, so
        three tokens are generated and one of them is guessed.
        """
        params = {"max_new_tokens": 3, "temperature": 0.0, "ignore_eos": True, "custom_params": {KEY: WARM_UP}}
        answer = http_request(
            self.base_url + "/generate",
            json={"text": prefix_str, "sampling_params": params},
            api_key=self.api_key,
            verify=self.verify,
        )
        self._assert_success(answer)

    def stats(self) -> dict[str, Any]:
        """Return the server's counts: in total, per program, by position and by source of the guesses."""
        from sgl_spec.runtime import stats_of

        return stats_of(self)

    def generate(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Any:
        """Generate with this program's options; returns (text, meta_info), lists of both for n > 1."""
        params = self._with_options(sampling_params)
        if (params.n or 1) > 1:
            several = object.__new__(SeveralSamples)
            several.__dict__.update(self.__dict__)
            return RuntimeEndpoint.generate(several, s, params)
        return super().generate(s, params)

    def generate_stream(self, s: StreamExecutor, sampling_params: SglSamplingParams) -> Iterator[Any]:
        """Stream (text, meta_info)."""
        if (sampling_params.n or 1) > 1:
            raise ConfigError(f"n={sampling_params.n} cannot be streamed in a program: use stream=False or n=1")
        return super().generate_stream(s, self._with_options(sampling_params))

    def _assert_success(self, res: Any) -> None:
        """Raise ServerError with the server's sentence where stock code raises the whole document, or a KeyError."""
        assert_success(res)

    def _with_options(self, params: SglSamplingParams) -> SpecSamplingParams:
        values = {f.name: getattr(params, f.name) for f in dataclasses.fields(SglSamplingParams)}
        stop = values["stop"]
        values["stop"] = [stop] if isinstance(stop, str) else list(stop or ())
        own = getattr(params, "spec_options", {})
        return SpecSamplingParams(**values, spec_options={**self.bound, **own})


class SeveralSamples(SpecEndpoint):
    """For one request with n > 1: SGLang's endpoint expects one answer, and the server sends a list of them."""

    def _assert_success(self, res: Any) -> None:
        super()._assert_success(res)
        parsed = res.json

        def columns() -> dict[str, list[Any]]:
            answers = parsed()
            return {name: [answer[name] for answer in answers] for name in ("text", "meta_info")}

        res.json = columns


def _remember_options(self: SglGen, *args: Any, **kwargs: Any) -> None:
    _original_init(self, *args, **kwargs)
    self.sampling_params.spec_options = current()


def _resolve(self: StreamExecutor, params: SglSamplingParams) -> SglSamplingParams:
    stop = params.stop
    own = dataclasses.replace(params, stop=list(stop) if isinstance(stop, list | tuple) else stop)
    resolved = _original_resolve(self, own)
    resolved.spec_options = getattr(params, "spec_options", {})
    return resolved


# A gen call is made in the program's thread and run in another: it has to take its options along.
_original_init, _original_resolve = SglGen.__init__, StreamExecutor._resolve_sampling_params
SglGen.__init__ = _remember_options
StreamExecutor._resolve_sampling_params = _resolve
