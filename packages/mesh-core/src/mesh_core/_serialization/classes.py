"""Classes that are pickled by value, packed once and unpickled once per process.

Other processes cannot import a class of the main script, so messages that need the class contain
its definition, a *parcel*. The definition is packed when the class is first sent. It is packed
again if the class, or a name that its methods use, has been rebound since. A process that has
unpickled a parcel remembers its key and reuses the class. So a class that returns to its origin is
the original class, and a class that is received again keeps the state that the process stores in
it. As with an imported module, a value that is modified in place is local to each process.
"""

from __future__ import annotations

from _pickle import loads
from operator import is_
from os import urandom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FunctionType
    from typing import Any

    # A namespace, the names in it, and the objects that they are bound to.
    Bindings = tuple[Any, tuple[str, ...], tuple[Any, ...]]

__all__ = ["Parcel", "find_parcel", "keep_parcel", "open_parcel"]

_PARCELS_LEN_MAX = 1_024
_KEY_LEN = 16

_parcels: dict[type, Parcel] = {}
_opened: dict[bytes, type] = {}


class Parcel:
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
            parts: The functions, classes and parcels that were packed with it.
        """
        self.key = key
        self.body = body
        self._within: list[Parcel] = []
        classes, names = {cls: None}, _Names()
        for part in parts:
            if isinstance(part, Parcel):
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
        return not self._within or all(parcel.is_current() for parcel in self._within)


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


def find_parcel(cls: type) -> Parcel | None:
    """Return the parcel of a class, if it was packed or unpickled here and is still current."""
    parcel = _parcels.get(cls)
    return parcel if parcel is not None and parcel.is_current() else None


def keep_parcel(cls: type, body: bytes, parts: Iterable[Any]) -> Parcel:
    """Create and store the parcel of a class that was packed in this process.

    Args:
        cls: The class.
        body: The pickle of the class.
        parts: The functions, classes and parcels that were packed with it.
    """
    return _keep(cls, Parcel(cls, urandom(_KEY_LEN), body, list(parts)))


def open_parcel(key: bytes, body: bytes) -> type:
    """Return the class of a parcel: the existing one, or a newly unpickled one."""
    cls = _opened.get(key)
    if cls is None:
        loaded: type = loads(body)
        # If this process sends the class on, it is the same definition, so receivers that have it
        # do not unpickle it again.
        _keep(loaded, Parcel(loaded, key, body, ()))
        cls = loaded
    return cls


def _keep(cls: type, parcel: Parcel) -> Parcel:
    for kept in (_parcels, _opened):
        if len(kept) >= _PARCELS_LEN_MAX:
            kept.clear()
    _parcels[cls] = parcel
    _opened[parcel.key] = cls
    return parcel


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
