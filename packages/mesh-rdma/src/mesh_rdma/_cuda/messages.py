"""Messages about device memory: descriptors, and notices of who maps an allocation."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from mesh_rdma._errors import RDMATransportError

__all__ = ["Descriptor", "MappingEvent", "MappingNotice"]

_VERSION = 1
_DESCRIPTOR = struct.Struct("<B16sQQQB16s64s")
_NOTICE = struct.Struct("<B16sQ")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A registration, as another process uses it.

    Attributes:
        owner: The name of the process whose it is.
        number: Which of its exported allocations.
        offset: Where in that it begins.
        nbytes: How long it is.
        is_writable: Whether others may write it.
        uuid: The device.
        exported: What the allocation is opened by.
    """

    owner: bytes
    number: int
    offset: int
    nbytes: int
    is_writable: bool
    uuid: bytes
    exported: bytes

    def pack(self) -> bytes:
        """Makes bytes of it."""
        return _DESCRIPTOR.pack(
            _VERSION, self.owner, self.number, self.offset, self.nbytes, self.is_writable,
            self.uuid, self.exported,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> Descriptor:
        """Reads what `pack` wrote.

        Raises:
            RDMATransportError: It is something else.
        """
        try:
            version, owner, number, offset, nbytes, is_writable, uuid, exported = (
                _DESCRIPTOR.unpack(data)
            )
        except struct.error as error:
            raise RDMATransportError("cuda: a malformed descriptor") from error
        if version != _VERSION:
            raise RDMATransportError("cuda: the other process has another version of this")
        return cls(owner, number, offset, nbytes, bool(is_writable), uuid, exported)


class MappingEvent(IntEnum):
    """What has happened to a mapping of an allocation of another process."""

    #: The sender maps the allocation, or is about to.
    OPENED = 1
    #: The sender has unmapped the allocation.
    CLOSED = 2


@dataclass(frozen=True, slots=True)
class MappingNotice:
    """A notice to the owner of an allocation: the event, the sender and the allocation."""

    event: MappingEvent
    who: bytes
    number: int

    def pack(self) -> bytes:
        """Makes bytes of it."""
        return _NOTICE.pack(self.event, self.who, self.number)

    @classmethod
    def unpack(cls, data: bytes) -> MappingNotice:
        """Reads what `pack` wrote.

        Raises:
            RDMATransportError: It is something else.
        """
        try:
            event, who, number = _NOTICE.unpack(data)
            return cls(MappingEvent(event), who, number)
        except (struct.error, ValueError) as error:
            raise RDMATransportError("cuda: a malformed notice") from error
