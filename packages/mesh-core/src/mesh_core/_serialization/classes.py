"""Classes that travel by value, packed once and opened once in each process.

A class of the main script cannot be imported elsewhere, so its definition goes along with whatever
needs it. The definition is packed when the class is first sent, and packed again when the class, or
a name that its methods use, has been bound anew. Whoever has opened a parcel knows its key and
takes the class that it already has: a class that comes home is the very one that left, and one that
comes again does not lose what the process keeps in it. As with an imported module, a value that is
changed in place stays a matter of each process.
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

    # Where names are bound, which names, and to what.
    Bindings = tuple[Any, tuple[str, ...], tuple[Any, ...]]

__all__ = ["Parcel", "find_parcel", "keep_parcel", "open_parcel"]

_PARCELS_LEN_MAX = 1_024
_KEY_LEN = 16

_parcels: dict[type, Parcel] = {}
_opened: dict[bytes, type] = {}


class Parcel:
    """The definition of a class, ready to send.

    Attributes:
        key: Names this definition in all processes.
        body: Its pickle.
    """

    __slots__ = ("_bound", "_classes", "_within", "body", "key")

    def __init__(self, cls: type, key: bytes, body: bytes, parts: Iterable[Any]) -> None:
        """Notes what the definition depends on.

        Args:
            cls: The class.
            key: The name of the definition.
            body: Its pickle.
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
        """Says whether everything that was packed is still bound to what it was."""
        # Asked each time that the class is sent: loops are half the price of generators here.
        for namespace, values in self._classes:
            if len(namespace) != len(values) or not all(map(is_, namespace.values(), values)):
                return False
        for namespace, names, values in self._bound:
            if not all(map(is_, map(namespace.get, names), values)):
                return False
        return not self._within or all(parcel.is_current() for parcel in self._within)


class _Names:
    """The names that functions look up, by where they look."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[Any, set[str]]] = {}

    def add_function(self, function: FunctionType) -> None:
        """Adds the globals that a function may use, and the variables that it closes over."""
        self._add(function.__globals__, _names(function.__code__))
        if function.__closure__:
            cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
            self._add(_Cells(cells), function.__code__.co_freevars)

    def bound(self) -> list[Bindings]:
        """Gives what the names are bound to now."""
        return [
            (namespace, tuple(names), tuple(map(namespace.get, names)))
            for namespace, names in self._names.values()
        ]

    def _add(self, namespace: Any, names: Iterable[str]) -> None:
        self._names.setdefault(id(namespace), (namespace, set()))[1].update(names)


def find_parcel(cls: type) -> Parcel | None:
    """Gives the parcel of a class, if it was packed or opened here and has not changed since."""
    parcel = _parcels.get(cls)
    return parcel if parcel is not None and parcel.is_current() else None


def keep_parcel(cls: type, body: bytes, parts: Iterable[Any]) -> Parcel:
    """Makes the parcel of a class that was packed here.

    Args:
        cls: The class.
        body: Its pickle.
        parts: The functions, classes and parcels that were packed with it.
    """
    return _keep(cls, Parcel(cls, urandom(_KEY_LEN), body, list(parts)))


def open_parcel(key: bytes, body: bytes) -> type:
    """Gives the class of a parcel: the one that is here already, or a new one."""
    cls = _opened.get(key)
    if cls is None:
        loaded: type = loads(body)
        # Sent on from here, it is the same definition: those who have it need not open it again.
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
    """Gives every name that a function may look up in its globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names(constant)


class _Cells(dict[str, "Any"]):
    """The variables that a function closes over, read through their cells."""

    def get(self, name: str, default: object = None) -> Any:
        try:
            return self[name].cell_contents
        except ValueError:
            return default  # nothing is assigned yet
