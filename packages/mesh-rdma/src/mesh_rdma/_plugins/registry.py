"""The registry of installed plug-in transports, by name."""

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
    """One installed transport, or the reason why it cannot be used.

    Attributes:
        name: The name of its entry point.
        transport: The transport, or None if it cannot be used.
        refusal: The reason why it cannot be used, or None.
    """

    def __init__(self, entry: EntryPoint) -> None:
        self.name = entry.name
        self.transport: Transport | None = None
        self.refusal: str | None = None
        try:
            made = entry.load()()
            if not isinstance(made, Transport):
                raise TypeError(f"{entry.value} is not a mesh_rdma.spi.Transport")
            self.refusal = made.probe()
            self.transport = made if self.refusal is None else None
        except Exception as error:
            # A broken transport must not disable the others; `explain` shows its error.
            self.refusal = f"{type(error).__name__}: {error}"


def transports() -> list[Loaded]:
    """Return all installed transports; each is created and probed once."""
    return [_load(entry.name, partial(Loaded, entry)) for entry in _installed()]


def transport(name: str) -> Loaded | None:
    """Return the transport of that name, or None if it is not installed."""
    if found := _loaded.get(name):
        return found
    for entry in _installed():
        if entry.name == name:
            return _load(name, partial(Loaded, entry))
    return None


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Return the entry points; cached, as the lookup takes milliseconds."""
    return tuple(entry_points(group=GROUP))


def _load(name: str, make: partial[Loaded]) -> Loaded:
    with _lock:
        if name not in _loaded:
            _loaded[name] = make()
        return _loaded[name]
