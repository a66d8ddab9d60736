"""Call a function when a module has been imported, without importing it."""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_functions: dict[str, list[Callable[[ModuleType], None]]] = {}


def after_import(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call `function` with the module `name` as soon as its code has run: now, if that is past."""
    module = sys.modules.get(name)
    if module is not None:
        function(module)
        return
    _functions.setdefault(name, []).append(function)
    if AfterImport not in sys.meta_path:
        sys.meta_path.insert(0, AfterImport)


class AfterImport:
    """Finder that leaves the finding to `PathFinder` and adds our functions to the loader it returns."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that someone waits for, else None."""
        functions = _functions.get(name)
        spec = PathFinder.find_spec(name, path, target) if functions else None
        if spec is None or spec.loader is None or functions is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for function in functions:
                function(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
