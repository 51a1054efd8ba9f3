"""Messages about device memory: descriptors, and notices about mapped allocations."""

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
    """A registration as other processes use it.

    Attributes:
        owner: The id of the process that owns the memory.
        number: The id of the exported allocation.
        offset: The offset of the registration in the allocation, in bytes.
        nbytes: The size of the registration in bytes.
        is_writable: Whether other processes can write to it.
        uuid: The UUID of the device.
        exported: The handle with which the allocation is opened.
    """

    owner: bytes
    number: int
    offset: int
    nbytes: int
    is_writable: bool
    uuid: bytes
    exported: bytes

    def pack(self) -> bytes:
        """Encode the descriptor."""
        return _DESCRIPTOR.pack(
            _VERSION, self.owner, self.number, self.offset, self.nbytes, self.is_writable,
            self.uuid, self.exported,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> Descriptor:
        """Decode a descriptor.

        Raises:
            RDMATransportError: The bytes are malformed, or have another version.
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
    """A change of the mapping of an allocation by another process."""

    #: The sender maps the allocation, or is about to map it.
    OPENED = 1
    #: The sender has unmapped the allocation.
    CLOSED = 2


@dataclass(frozen=True, slots=True)
class MappingNotice:
    """A notice to the owner of an allocation: the event, the sender and the allocation."""

    event: MappingEvent
    process: bytes
    number: int

    def pack(self) -> bytes:
        """Encode the notice."""
        return _NOTICE.pack(self.event, self.process, self.number)

    @classmethod
    def unpack(cls, data: bytes) -> MappingNotice:
        """Decode a notice.

        Raises:
            RDMATransportError: The bytes are malformed.
        """
        try:
            event, process, number = _NOTICE.unpack(data)
            return cls(MappingEvent(event), process, number)
        except (struct.error, ValueError) as error:
            raise RDMATransportError("cuda: a malformed notice") from error
