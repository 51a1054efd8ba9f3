"""What processes tell each other about memory of devices: descriptors, and who maps what."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from mesh_rdma._errors import RDMATransportError

__all__ = ["Descriptor", "Question", "Topic"]

_VERSION = 1
_DESCRIPTOR = struct.Struct("<B16sQQQB16s64s")
_QUESTION = struct.Struct("<B16sQ")


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
            raise RDMATransportError("cuda: these bytes describe no memory") from error
        if version != _VERSION:
            raise RDMATransportError("cuda: the other process has another version of this")
        return cls(owner, number, offset, nbytes, bool(is_writable), uuid, exported)


class Topic(IntEnum):
    """What a process says about an allocation of another one."""

    #: It maps it, or is about to, and has not ended that.
    OPENED = 1
    #: It maps it no more.
    CLOSED = 2


@dataclass(frozen=True, slots=True)
class Question:
    """What is said, and by whom about which allocation."""

    topic: Topic
    who: bytes
    number: int

    def pack(self) -> bytes:
        """Makes bytes of it."""
        return _QUESTION.pack(self.topic, self.who, self.number)

    @classmethod
    def unpack(cls, data: bytes) -> Question:
        """Reads what `pack` wrote.

        Raises:
            RDMATransportError: It is something else.
        """
        try:
            topic, who, number = _QUESTION.unpack(data)
            return cls(Topic(topic), who, number)
        except (struct.error, ValueError) as error:
            raise RDMATransportError("cuda: a question that nobody knows here") from error
