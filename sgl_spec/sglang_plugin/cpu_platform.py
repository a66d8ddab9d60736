"""Entry point ``sglang.srt.platforms``: lets stock SGLang start on a machine without an accelerator.

Runs during ``import sglang`` in every process, before anything imports ``sgl_kernel``. The published
``sgl_kernel`` wheel holds CUDA libraries only, so importing it fails without a GPU, while SGLang's CPU
path takes about ten functions from it. Where no accelerator and no CPU build of ``sgl_kernel`` exists,
this installs a stand-in module of that name (`cpu_kernels.py`); everywhere else it does nothing.
"""

import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path

from sgl_spec.sglang_plugin import cpu_compile, cpu_imports, cpu_models, cpu_start, cpu_transformers, shared_tokenizer

CPU_ENGINE_VARIABLE = "SGLANG_USE_CPU_ENGINE"
CRASH_DIAGNOSTICS = ("SGLANG_PYSPY_DUMP_BEFORE_CRASH", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH")
"""Dumps for which SGLang's server waits about a minute after a process of it died, while its clients hang."""


def has_accelerator() -> bool:
    """Return whether torch sees any accelerator (CUDA, ROCm, XPU, NPU, MPS, ...)."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type != "cpu"


def has_cpu_kernels(folder: Path | None) -> bool:
    """Return whether the installed ``sgl_kernel`` is a CPU build (its library lies at the top level)."""
    return folder is not None and any(folder.glob("common_ops*.so"))


def installed_kernel_folder() -> Path | None:
    """Return the folder of the installed ``sgl_kernel`` package without importing it."""
    spec = importlib.machinery.PathFinder.find_spec("sgl_kernel")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def activate() -> None:
    """Install the stand-in where it is needed; return None, so that SGLang's own platform is used."""
    folder = installed_kernel_folder()
    if has_accelerator() or "sgl_kernel" in sys.modules:
        return
    os.environ.setdefault(CPU_ENGINE_VARIABLE, "1")
    for variable in CRASH_DIAGNOSTICS:
        os.environ.setdefault(variable, "0")
    cpu_imports.apply()
    cpu_compile.apply()
    cpu_transformers.apply()
    cpu_start.apply()
    cpu_models.apply()
    shared_tokenizer.apply()
    if has_cpu_kernels(folder) or os.environ[CPU_ENGINE_VARIABLE] != "1":
        return
    install_stand_in(folder)


def install_stand_in(folder: Path | None) -> None:
    """Put a module ``sgl_kernel`` of our functions into ``sys.modules``.

    Its ``__path__`` still points at the installed wheel, so that pure-Python submodules
    (``sgl_kernel.utils``, ``sgl_kernel.scalar_type``) load from there.
    """
    from sgl_spec.sglang_plugin import cpu_kernels

    module = types.ModuleType("sgl_kernel", "Stand-in of sgl-spec for machines without an accelerator.")
    module.__path__ = [str(folder)] if folder else []
    module.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", None, is_package=True)
    for name in cpu_kernels.__all__:
        setattr(module, name, getattr(cpu_kernels, name))
    for name in cpu_kernels.ABSENT:
        setattr(module, name, None)
    cpu_kernels.register_operators()
    sys.modules["sgl_kernel"] = module
