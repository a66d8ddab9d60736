"""sgl-spec: lossless, self-tuning speculative decoding for SGLang programs and servers.

>>> import sglang as sgl, sgl_spec
>>> sgl.set_default_backend(sgl_spec.Runtime(model_path=..., draft_model_path=...))  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sgl_spec.errors import ConfigError, EngineError, SpecError, UpstreamError, VocabularyError

if TYPE_CHECKING:
    from sgl_spec.request_options import options
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


_LAZY = {"Runtime": "sgl_spec.runtime", "options": "sgl_spec.request_options"}
"""Names that bring heavy packages with them (SGLang's front end takes seconds): imported when they are used."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
