"""Classes that are pickled by value, packed once and unpickled once per process.

Other processes cannot import a class of the main script, so messages that need the class contain
its definition, a *pickled class*. The definition is packed when the class is first sent. It is
packed again if the class, or a name that its methods use, has been rebound since. A process that
has unpickled one remembers its key and reuses the class. So a class that returns to its origin is
the original class, and a class that is received again keeps the state that the process stores in
it. As with an imported module, a value that is modified in place is local to each process.
"""

from __future__ import annotations

import os
from _pickle import loads
from operator import is_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FunctionType
    from typing import Any

    # A namespace, the names in it, and the objects that they are bound to.
    Bindings = tuple[Any, tuple[str, ...], tuple[Any, ...]]

__all__ = ["PickledClass", "find_pickled_class", "keep_pickled_class", "load_pickled_class"]

_PARCELS_LEN_MAX = 1_024
_KEY_LEN = 16

_pickled_classes: dict[type, PickledClass] = {}
_opened: dict[bytes, type] = {}


class PickledClass:
    """The pickled definition of a class.

    Attributes:
        key: Identifies this definition in all processes.
        body: The pickle of the class.
    """

    __slots__ = ("_bound", "_classes", "_within", "body", "key")

    def __init__(self, cls: type, key: bytes, body: bytes, parts: Iterable[Any]) -> None:
        """Record the dependencies of the definition.

        Args:
            cls: The class.
            key: The key of the definition.
            body: The pickle of the class.
            parts: The functions, classes and pickled classes that were packed with it.
        """
        self.key = key
        self.body = body
        self._within: list[PickledClass] = []
        classes, names = {cls: None}, _Names()
        for part in parts:
            if isinstance(part, PickledClass):
                self._within.append(part)
            elif isinstance(part, type):
                classes[part] = None
            else:
                names.add_function(part)
        self._classes = [(one.__dict__, tuple(one.__dict__.values())) for one in classes]
        self._bound = names.bound()

    def is_current(self) -> bool:
        """Return whether all names that were packed are still bound to the same objects."""
        # This runs each time the class is sent. Loops are twice as fast as generators here.
        for namespace, values in self._classes:
            if len(namespace) != len(values) or not all(map(is_, namespace.values(), values)):
                return False
        for namespace, names, values in self._bound:
            if not all(map(is_, map(namespace.get, names), values)):
                return False
        return not self._within or all(pickled.is_current() for pickled in self._within)


class _Names:
    """The names that functions look up, grouped by namespace."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[Any, set[str]]] = {}

    def add_function(self, function: FunctionType) -> None:
        """Add the globals that a function may use and the variables in its closure."""
        self._add(function.__globals__, _names(function.__code__))
        if function.__closure__:
            cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
            self._add(_Cells(cells), function.__code__.co_freevars)

    def bound(self) -> list[Bindings]:
        """Return the current bindings of the names."""
        return [
            (namespace, tuple(names), tuple(map(namespace.get, names)))
            for namespace, names in self._names.values()
        ]

    def _add(self, namespace: Any, names: Iterable[str]) -> None:
        self._names.setdefault(id(namespace), (namespace, set()))[1].update(names)


def find_pickled_class(cls: type) -> PickledClass | None:
    """Return the pickled form of a class if it was packed or loaded here and is current."""
    pickled = _pickled_classes.get(cls)
    return pickled if pickled is not None and pickled.is_current() else None


def keep_pickled_class(cls: type, body: bytes, parts: Iterable[Any]) -> PickledClass:
    """Create and store the pickled form of a class that was packed in this process.

    Args:
        cls: The class.
        body: The pickle of the class.
        parts: The functions, classes and pickled classes that were packed with it.
    """
    return _keep(cls, PickledClass(cls, os.urandom(_KEY_LEN), body, list(parts)))


def load_pickled_class(key: bytes, body: bytes) -> type:
    """Return the class of a pickled definition: the existing one, or a newly unpickled one."""
    cls = _opened.get(key)
    if cls is None:
        loaded: type = loads(body)
        # If this process sends the class on, it is the same definition, so receivers that have it
        # do not unpickle it again.
        _keep(loaded, PickledClass(loaded, key, body, ()))
        cls = loaded
    return cls


def _keep(cls: type, pickled: PickledClass) -> PickledClass:
    for kept in (_pickled_classes, _opened):
        if len(kept) >= _PARCELS_LEN_MAX:
            kept.clear()
    _pickled_classes[cls] = pickled
    _opened[pickled.key] = cls
    return pickled


def _names(code: CodeType) -> Iterator[str]:
    """Yield every name that a function may look up in its globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names(constant)


class _Cells(dict[str, "Any"]):
    """The closure variables of a function, read through their cells."""

    def get(self, name: str, default: object = None) -> Any:
        try:
            return self[name].cell_contents
        except ValueError:
            return default  # not assigned yet
