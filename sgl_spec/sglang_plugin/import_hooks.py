"""Run code around the import of a module that someone else will import, without importing it."""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

Around = Callable[[ModuleType, Callable[[], None]], None]
"""Called with the new module and the function that runs its code; must call that function once."""

_around: dict[str, Around] = {}


def around_import(name: str, function: Around) -> None:
    """Let `function` run the code of the module `name` when it is imported; too late is an error."""
    if name in sys.modules or name in _around:
        raise RuntimeError(f"{name} is imported or waited for already")
    _around[name] = function
    if AroundImport not in sys.meta_path:
        sys.meta_path.insert(0, AroundImport)


def after_import(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call `function` with the module `name` as soon as its code has run."""

    def around(module: ModuleType, execute: Callable[[], None]) -> None:
        execute()
        function(module)

    around_import(name, around)


class AroundImport:
    """Finder that leaves the finding to `PathFinder` and puts our function around the loader's work."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that someone waits for, else None."""
        function = _around.get(name)
        spec = PathFinder.find_spec(name, path, target) if function else None
        if spec is None or spec.loader is None or function is None:
            return None
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: function(module, lambda: execute(module))
        return spec
