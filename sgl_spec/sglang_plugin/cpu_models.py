"""Import of the one model file that is needed, in place of all of SGLang's (225 files, 6 CPU seconds).

SGLang defers its own models when an external model package is named. We name an empty one while its
registry is imported, and give the registry a dictionary that finds an architecture's file by its text.
What is not found that way takes SGLang's full scan, so every model loads as before.
"""

import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from sgl_spec.errors import UpstreamError
from sgl_spec.sglang_plugin.import_hooks import around_import

REGISTRY_MODULE = "sglang.srt.models.registry"
MODELS_PACKAGE = "sglang.srt.models"
EXTERNAL_VARIABLE = "SGLANG_EXTERNAL_MODEL_PACKAGE"
DISABLED_VARIABLE = "SGLANG_DISABLED_MODEL_ARCHS"
EMPTY_PACKAGE = "sgl_spec.sglang_plugin.no_models"
ENTRY_CLASS = re.compile(r"^EntryClass\s*=\s*(\[[^\]]*\]|\w+)", re.MULTILINE)


def apply() -> None:
    """Make SGLang's model registry lazy in this process, unless the user named models to add or to omit."""
    if not os.environ.get(EXTERNAL_VARIABLE) and not os.environ.get(DISABLED_VARIABLE):
        around_import(REGISTRY_MODULE, run_without_models)


def run_without_models(registry: ModuleType, execute: Callable[[], None]) -> None:
    """Run the registry's module with an empty external package; raise UpstreamError if it differs."""
    os.environ[EXTERNAL_VARIABLE] = EMPTY_PACKAGE
    try:
        execute()
    finally:
        del os.environ[EXTERNAL_VARIABLE]
    known = getattr(registry, "ModelRegistry", None)
    if getattr(known, "models", None) != {} or getattr(known, "_default_models_loaded", None) is not False:
        raise UpstreamError(f"{REGISTRY_MODULE} does not defer its models as 0.5.23 does: install sglang==0.5.23")
    known.models = LazyModels(Path(importlib.import_module(MODELS_PACKAGE).__path__[0]))


class LazyModels(dict[str, Any]):
    """Architecture name to model class; a missing one is looked up in the files of `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __contains__(self, architecture: object) -> bool:
        return self.get(architecture) is not None

    def __getitem__(self, architecture: str) -> Any:
        found = self.get(architecture)
        if found is None:
            raise KeyError(architecture)
        return found

    def get(self, architecture: object, default: Any = None) -> Any:
        """Return the class of that name, importing its file; `default` if no file names it."""
        known = super().get(architecture)
        if known is None and isinstance(architecture, str):
            known = entry_class(self.folder, architecture)
            if known is not None:
                self[architecture] = known
        return default if known is None else known


def entry_class(folder: Path, architecture: str) -> Any:
    """Return the class that one file of `folder` offers as `architecture`; None if none or several do."""
    files = [path for path in sorted(folder.glob("*.py")) if architecture in offered(path)]
    if len(files) != 1:
        return None
    module = importlib.import_module(f"{MODELS_PACKAGE}.{files[0].stem}")
    entry = module.EntryClass
    classes = entry if isinstance(entry, list) else [entry]
    return next((c for c in classes if c.__name__ == architecture), None)


def offered(path: Path) -> list[str]:
    """Return the class names that a model file's text lists as its ``EntryClass``."""
    match = ENTRY_CLASS.search(path.read_text(encoding="utf-8"))
    return re.findall(r"\w+", match[1]) if match else []
