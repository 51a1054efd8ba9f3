"""Registrations of buffers with plug-in transports, made on the first request."""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

from mesh_rdma import _core
from mesh_rdma._errors import RDMATransportError
from mesh_rdma._plugins.registry import transport
from mesh_rdma._plugins.transport import Region
from mesh_rdma._requests.handlers import register_handler_lookup

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_rdma._plugins.transport import Registration, Transport

__all__ = ["CONNECT", "DESCRIBE", "RELEASED", "describe_request", "request_handler"]

#: The first byte of a request: describe a buffer, or connect to the transport.
DESCRIBE = b"d"
CONNECT = b"c"

#: The response, instead of a descriptor, if the buffer has been released.
RELEASED = b""

_BUFFER = struct.Struct("<IQ")
_lock = threading.RLock()  # A finalizer may run while it is held.
_registrations: dict[tuple[str, int, int], Registration] = {}


class _BufferFinalizer:
    """Releases a registration when the buffer is released; the buffer keeps a reference to it."""

    def __init__(self, place: tuple[str, int, int]) -> None:
        self._place = place

    def __del__(self) -> None:
        with _lock:
            registration = _registrations.pop(self._place, None)
        if registration is not None:
            registration.release()


def describe_request(slot: int, key: int) -> bytes:
    """Encode a request for the descriptor of a buffer."""
    return DESCRIBE + _BUFFER.pack(slot, key)


def request_handler(name: str) -> Callable[[bytes], bytes] | None:
    """Return the handler of requests to a transport, or None if it is not installed."""
    loaded = transport(name)
    if loaded is None:
        return None

    def handle(request: bytes) -> bytes:
        if loaded.transport is None:
            raise RDMATransportError(f"{name} cannot be used there: {loaded.refusal}")
        if request.startswith(CONNECT):
            return loaded.transport.accept(request[1:])
        return _describe(name, loaded.transport, *_BUFFER.unpack(request[1:]))

    return handle


def _describe(name: str, transport: Transport, slot: int, key: int) -> bytes:
    place = (name, slot, key)
    with _lock:
        if place not in _registrations:
            local = _core.region_of(slot, key)
            if local is None:
                return RELEASED
            at = local.address, local.nbytes, local.is_writable, local.device
            registration = transport.register(Region(*at, memory_owner=local))
            if not _core.attach_object(slot, key, _BufferFinalizer(place)):
                registration.release()
                return RELEASED
            _registrations[place] = registration
        return _registrations[place].descriptor


register_handler_lookup(request_handler)
