"""Transports by name, whoever has written them."""

from __future__ import annotations

import threading
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points

from mesh_rdma._plugins.transport import Transport

__all__ = ["GROUP", "Loaded", "transport", "transports"]

GROUP = "mesh_rdma.transports"

_lock = threading.Lock()
_loaded: dict[str, Loaded] = {}


class Loaded:
    """One transport of this process, or why it cannot be used.

    Attributes:
        name: What it is called.
        transport: The object; None if it cannot be used.
        refusal: Why it cannot be used, or None.
    """

    def __init__(self, entry: EntryPoint) -> None:
        self.name = entry.name
        self.transport: Transport | None = None
        self.refusal: str | None = None
        try:
            made = entry.load()()
            if not isinstance(made, Transport):
                raise TypeError(f"{entry.value} is no mesh_rdma.spi.Transport")
            self.refusal = made.probe()
            self.transport = made if self.refusal is None else None
        except Exception as error:
            # One that is broken must not keep the others from working; `explain` shows it.
            self.refusal = f"{type(error).__name__}: {error}"


def transports() -> list[Loaded]:
    """Gives all that are installed; each is made and probed once."""
    return [_load(entry.name, partial(Loaded, entry)) for entry in _installed()]


def transport(name: str) -> Loaded | None:
    """Gives the one of a name, if it is installed."""
    if found := _loaded.get(name):
        return found
    for entry in _installed():
        if entry.name == name:
            return _load(name, partial(Loaded, entry))
    return None


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Looks through all that is installed, which takes milliseconds: once."""
    return tuple(entry_points(group=GROUP))


def _load(name: str, make: partial[Loaded]) -> Loaded:
    with _lock:
        if name not in _loaded:
            _loaded[name] = make()
        return _loaded[name]
