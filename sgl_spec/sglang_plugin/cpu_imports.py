"""Keep SGLang on a CPU from importing what it cannot use there, or not yet (4-5 CPU seconds per start).

SGLang's own CPU distribution does not depend on them, so each of these imports is guarded or unused on a
CPU. To SGLang they look as if they were not installed; everyone else can import them.
The compiler behind ``torch.compile`` is imported when it is first used.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

GPU_PACKAGES = frozenset({"flashinfer", "cutlass", "quack", "tilelang", "deep_gemm", "cudnn"})

LAZY_MODULES = frozenset({"torch._inductor.compile_fx"})
"""Modules that SGLang imports by name and uses in functions only."""


def apply() -> None:
    """Hide the GPU packages from SGLang and defer the lazy modules in this process."""
    for finder in (HiddenFromSglang, LazyForSglang):
        if finder not in sys.meta_path:
            sys.meta_path.insert(0, finder)


class HiddenFromSglang:
    """Finder that refuses the GPU packages to modules of SGLang and leaves all else to the others."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError if SGLang imports a GPU package; return None otherwise."""
        if name in GPU_PACKAGES and importer() == "sglang":
            raise ModuleNotFoundError(f"{name} needs a GPU: sgl-spec hides it from SGLang on a CPU", name=name)
        return None


class LazyForSglang:
    """Finder that lets SGLang import the lazy modules without running them before their first use."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec with a lazy loader if SGLang imports a lazy module, else None."""
        if name not in LAZY_MODULES or importer() != "sglang":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def importer() -> str:
    """Return the top-level package that runs the import statement being served; "" for a mere look-up."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_filename == "<frozen importlib.util>":
            return ""
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).split(".", maxsplit=1)[0]
