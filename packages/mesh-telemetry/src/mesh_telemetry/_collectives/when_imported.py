"""Calls a function when a module has been imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Action = Callable[[ModuleType], object]

__all__ = ["when_imported"]


def when_imported(name: str, action: Action) -> None:
    """Call the function with the module: now if it is imported, else after its import."""
    module = sys.modules.get(name)
    spec = None if module is None else getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        action(module)
        return
    sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    """Finds one module with the other finders, and adds a call to the end of its import."""

    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._action)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, action: Action) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            # The module keeps no trace of this loader.
            spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action(module)
