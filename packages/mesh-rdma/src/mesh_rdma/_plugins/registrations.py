"""Buffers of this process as plug-in transports know them: registered when somebody asks."""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

from mesh_rdma import _core
from mesh_rdma._errors import RDMATransportError
from mesh_rdma._plugins.registry import transport
from mesh_rdma._plugins.transport import Region
from mesh_rdma._requests.handlers import answer_late

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_rdma._plugins.transport import Registration, Transport

__all__ = ["CONNECT", "DESCRIBE", "RELEASED", "description_of", "questions_to"]

#: What a question to a transport begins with: which buffer it is about, or that it is its own.
DESCRIBE = b"d"
CONNECT = b"c"

#: What is answered instead of a descriptor if there is no such buffer any more.
RELEASED = b""

_BUFFER = struct.Struct("<IQ")
_lock = threading.RLock()  # a finaliser may run inside of it
_offered: dict[tuple[str, int, int], Registration] = {}


class _Offer:
    """Ends a registration when the buffer is gone: the process keeps it as long as the buffer."""

    def __init__(self, place: tuple[str, int, int]) -> None:
        self._place = place

    def __del__(self) -> None:
        with _lock:
            registration = _offered.pop(self._place, None)
        if registration is not None:
            registration.release()


def description_of(slot: int, key: int) -> bytes:
    """Makes the question for what another process needs of a buffer."""
    return DESCRIBE + _BUFFER.pack(slot, key)


def questions_to(name: str) -> Callable[[bytes], bytes] | None:
    """Finds what answers questions to a transport, if it is installed."""
    loaded = transport(name)
    if loaded is None:
        return None

    def answer(question: bytes) -> bytes:
        if loaded.transport is None:
            raise RDMATransportError(f"{name} cannot be used there: {loaded.refusal}")
        if question.startswith(CONNECT):
            return loaded.transport.accept(question[1:])
        return _describe(name, loaded.transport, *_BUFFER.unpack(question[1:]))

    return answer


def _describe(name: str, transport: Transport, slot: int, key: int) -> bytes:
    place = (name, slot, key)
    with _lock:
        if place not in _offered:
            local = _core.region_of(slot, key)
            if local is None:
                return RELEASED
            at = local.address, local.nbytes, local.is_writable, local.device
            registration = transport.register(Region(*at, keeper=local))
            if not _core.keep(slot, key, _Offer(place)):
                registration.release()
                return RELEASED
            _offered[place] = registration
        return _offered[place].descriptor


answer_late(questions_to)
