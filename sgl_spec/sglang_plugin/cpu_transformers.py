"""Less work while SGLang imports transformers on a CPU; whatever is left out happens when it is needed.

- SGLang mends three modules of transformers that it does not use itself unless a model does (a Llama file, two for
  images); importing them brings PyTorch's distributed tensors, its compiler, torchvision and SciPy. They are
  mended when someone imports them.
- transformers asks which distribution each installed package comes from, to look up a few versions.
- transformers reads its models' files twice, to know which class is in which.
- transformers imports SciPy for the training losses of models that detect objects: they import it when they are used.
"""

import functools
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sgl_spec.errors import UpstreamError
from sgl_spec.sglang_plugin.import_hooks import after_import, around_import

PATCHES_MODULE = "sglang.srt.utils.hf_transformers_patches"
PATCHED_WHEN_IMPORTED = {
    "_patch_removed_symbols": "transformers.models.llama.modeling_llama",
    "_patch_image_processor_kwargs": "transformers.image_processing_utils",
    "_patch_image_process_cuda_tensor": "transformers.image_processing_backends",
}
"""SGLang's function -> the module of transformers that it imports and mends."""

IMPORT_UTILS = "transformers.utils.import_utils"
OWN_NAME = frozenset({"torch", "accelerate", "mistral_common", "kernels", "torchvision"})
"""Packages whose distribution has the package's name, and whose versions transformers looks up when imported."""
FOR_GPUS = frozenset({"flash_attn"})
"""Packages that transformers looks for when imported and uses on a GPU only: they look as if not installed."""

LOSSES = "transformers.loss.loss_utils"


def apply() -> None:
    """Do the same for each of these modules that is still to be imported in this process."""
    if PATCHES_MODULE not in sys.modules:
        after_import(PATCHES_MODULE, defer_patches)
    if IMPORT_UTILS not in sys.modules:
        around_import(IMPORT_UTILS, run_quickly)
    if LOSSES not in sys.modules:
        around_import(LOSSES, defer_scipy)


def defer_patches(patches: ModuleType) -> None:
    """Let each of SGLang's three functions wait for the module that it mends."""
    for name, target in PATCHED_WHEN_IMPORTED.items():
        patch = getattr(patches, name, None)
        if patch is None:
            raise UpstreamError(f"{PATCHES_MODULE} has no {name}: install sglang==0.5.23")
        setattr(patches, name, functools.partial(when_imported, target, patch))


def when_imported(target: str, patch: Callable[[], None]) -> None:
    """Call `patch` now if the module `target` is imported already, else as soon as it is."""
    if target in sys.modules:
        patch()
    else:
        after_import(target, lambda _: patch())


def run_quickly(import_utils: Any, execute: Callable[[], None]) -> None:
    """Run transformers' module without its slow look-ups."""
    real = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = lambda: Distributions(real)
    try:
        execute()
    finally:
        importlib.metadata.packages_distributions = real
    scan = import_utils.create_import_structure_from_path
    import_utils.create_import_structure_from_path = once_per_folder(scan)


def defer_scipy(_: ModuleType, execute: Callable[[], None]) -> None:
    """Run the module of the losses, and those that it imports, as if SciPy were not installed; then it is again.

    They take ``linear_sum_assignment`` from it, nothing else.
    """
    utils: Any = sys.modules["transformers.utils"]
    real, hidden = utils.is_scipy_available, lambda: False
    utils.is_scipy_available = hidden
    try:
        execute()
    finally:
        utils.is_scipy_available = real
    losses = [vars(module) for name, module in sys.modules.items() if name.startswith("transformers.loss.")]
    for loss in losses:
        if real() and loss.get("is_scipy_available") is hidden:
            loss.update(is_scipy_available=real, linear_sum_assignment=linear_sum_assignment)


def linear_sum_assignment(*given: Any, **named: Any) -> Any:
    """As SciPy's."""
    from scipy.optimize import linear_sum_assignment as scipys

    return scipys(*given, **named)


class Distributions(dict[str, list[str]]):
    """What ``packages_distributions()`` returns, worked out when someone asks for a name outside `OWN_NAME`.

    For a name in it the answer holds the distribution of that name only, which is the one that gives a version.
    """

    def __init__(self, work_out: Callable[[], Any]) -> None:
        super().__init__()
        self._work_out = work_out

    def get(self, name: str, default: Any = None) -> Any:
        """Return the names of the distributions that bring the package `name`."""
        if name in OWN_NAME:
            try:
                return [importlib.metadata.distribution(name).metadata["Name"]]
            except importlib.metadata.PackageNotFoundError:
                pass
        if name in FOR_GPUS or importlib.util.find_spec(name) is None:
            return default
        self._fill()
        return super().get(name, default)

    def __missing__(self, name: str) -> list[str]:
        self._fill()
        if name in self:
            return super().__getitem__(name)
        raise KeyError(name)

    def _fill(self) -> None:
        if not self:
            self.update(self._work_out())


def once_per_folder(scan: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `scan` with a memory: a folder, named by itself or by a file in it, is read once."""
    known: dict[str, Any] = {}

    @functools.wraps(scan)
    def scan_once(path: Any) -> Any:
        folder = os.path.dirname(path) if os.path.isfile(path) else os.fspath(path)  # noqa: PTH113, PTH120
        if folder not in known:
            known[folder] = scan(folder)
        return known[folder]

    return scan_once
