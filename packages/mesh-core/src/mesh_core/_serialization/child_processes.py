"""Functions and classes of the script in child processes that actors start with multiprocessing.

multiprocessing pickles them by name, and its child processes execute the script to find the names.
The processes of a mesh do not execute the script, and their `__main__` has no such names. They
and their child processes therefore pickle these objects by value, as in messages.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from types import FunctionType

from mesh_core._serialization.pickler import decode, encode_value, is_importable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

__all__ = ["pickle_script_by_value"]

_MODULE = "multiprocessing.reduction"


def pickle_script_by_value() -> None:
    """Make multiprocessing pickle objects of `__main__` by value, now or when it is imported."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _adapt(module)
    elif not any(isinstance(finder, _ReductionFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ReductionFinder())


class _ReductionFinder:
    """Adapts the module when it is imported, because most processes never import it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the usual specification of the module with a loader that also adapts it."""
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _adapt(module)

            loader.exec_module = exec_module
        return spec


def _adapt(module: Any) -> None:
    module.ForkingPickler.reducer_override = _reduce


def _reduce(_pickler: object, value: Any) -> Any:
    kind = type(value)
    if (kind is FunctionType or issubclass(kind, type)) and not is_importable(value):
        return _load, (encode_value(value, sys.maxsize)[0],)
    return NotImplemented


def _load(body: bytes) -> Any:
    # The objects that this process sends back may also belong to the script.
    pickle_script_by_value()
    return decode(body)
