"""Options of a request from within a program: ``with sgl_spec.options(program="code"): ...``.

Around ``program.run(...)`` or ``run_batch`` they hold for the whole program, its forks included; inside a
program's function they hold for the ``sgl.gen`` calls in the block. The same keys travel over HTTP in
``sampling_params["custom_params"]["sgl_spec"]``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sgl_spec.config import RequestOptions

_current: ContextVar[dict[str, Any]] = ContextVar("sgl_spec_options")


@contextmanager
def options(**values: Any) -> Iterator[None]:
    """Set request options for the block; inner blocks override single keys of outer ones.

    Keys: ``speculate, num_speculative_tokens, controller, draft_confidence, program, prediction, cache, draft_model,
    namespace``. Raises ConfigError for an unknown key or a value out of range.
    """
    merged = {**current(), **values}
    RequestOptions.parse(merged)
    token = _current.set(merged)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> dict[str, Any]:
    """Return the options that hold here; empty without a block."""
    return _current.get({})
