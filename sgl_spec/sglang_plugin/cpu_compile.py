"""``@torch.compile`` and ``@torch.compiler.disable`` in SGLang's and transformers' modules: done at the first call.

PyTorch imports its compiler when a function is decorated: 5 CPU seconds per start for functions that a CPU never
calls. Compiling itself waits for the first call in any case.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

PACKAGES = frozenset({"sglang", "transformers"})


def apply() -> None:
    """Let decorators of these packages' modules wait; everyone else gets PyTorch's own functions."""
    import torch

    if not hasattr(torch.compile, "sgl_spec"):
        torch.compile = deferring(torch.compile)
        torch.compiler.disable = deferring(torch.compiler.disable)


def deferring(decorator: Callable[..., Any]) -> Callable[..., Any]:
    """Return `decorator`, which postpones its work where one of the modules uses it while it is imported."""

    @functools.wraps(decorator)
    def decorate(function: Any = None, *args: Any, **options: Any) -> Any:
        if args or not in_module_body():
            return decorator(function, *args, **options)
        if function is None:
            return lambda later: postponed(decorator, later, options)
        return postponed(decorator, function, options)

    decorate.sgl_spec = True  # type: ignore[attr-defined]
    return decorate


def postponed(decorator: Callable[..., Any], function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Return a function that is decorated when it is called for the first time."""
    decorated: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not decorated:
            decorated.append(decorator(function, **options))
        return decorated[0](*args, **kwargs)

    return call


def in_module_body() -> bool:
    """Whether the caller's caller is the body of a module of the packages, or a class body in it."""
    frame = sys._getframe(2)
    names = frame.f_globals
    while frame.f_back is not None and frame.f_code.co_name != "<module>" and frame.f_back.f_globals is names:
        frame = frame.f_back
    return frame.f_code.co_name == "<module>" and str(names.get("__name__", "")).partition(".")[0] in PACKAGES
