"""sgl-spec: lossless, self-tuning speculative decoding for SGLang programs and servers.

>>> import sglang as sgl, sgl_spec
>>> sgl.set_default_backend(sgl_spec.Runtime(model_path=..., draft_model_path=...))  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from sgl_spec.errors import ConfigError, EngineError, SpecError, UpstreamError, VocabularyError
from sgl_spec.options import options

if TYPE_CHECKING:
    from sgl_spec.runtime import Runtime

__all__ = [
    "ConfigError",
    "EngineError",
    "Runtime",
    "SpecError",
    "UpstreamError",
    "VocabularyError",
    "options",
]


def __getattr__(name: str) -> Any:
    """`Runtime` brings SGLang's front end with it, which takes seconds: it is imported when it is used."""
    if name == "Runtime":
        from sgl_spec.runtime import Runtime

        return Runtime
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
