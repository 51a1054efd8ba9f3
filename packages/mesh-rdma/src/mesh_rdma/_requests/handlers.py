"""Handlers of requests that other processes send about the memory of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_rdma import _core
from mesh_rdma._errors import RDMATransportError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["register_handler", "start_serving"]

_handlers: dict[str, Callable[[bytes], bytes]] = {}
_lookups: list[Callable[[str], Callable[[bytes], bytes] | None]] = []


def register_handler(name: str, handler: Callable[[bytes], bytes]) -> None:
    """Register the function that handles requests to `name`.

    A client sends a request with `Handle.exchange(name, request, timeout)`. The handler runs in the
    thread of that client's connection; if it raises, the client receives the text as an
    `RDMATransportError`. Any process that has a handle of a buffer of this process can send
    requests, so a request is bytes of a fixed layout and never a pickle.
    """
    _handlers[name] = handler


def register_handler_lookup(find: Callable[[str], Callable[[bytes], bytes] | None]) -> None:
    """Register a function that finds the handler of a name that does not have one yet."""
    _lookups.append(find)


def start_serving() -> None:
    """Start to handle requests; called when the first handle is created."""
    _core.set_request_handler(_dispatch)


def _dispatch(name: str, request: bytes) -> bytes:
    found = _handlers.get(name)
    if found is None:
        found = next((one for find in _lookups if (one := find(name)) is not None), None)
    if found is None:
        raise RDMATransportError(
            f"this process has no {name!r}: install the package that provides it here too"
        )
    return found(request)
