"""What is asked of a process whose memory of a device is copied through the processor's."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from mesh_rdma._errors import RDMATransportError

__all__ = ["STAGED", "Ask", "Op", "Status"]

#: The name that the questions go to, and of the transport.
STAGED = "staged"

_ASK = struct.Struct("<B16sBIQQQQQd")


class Op(IntEnum):
    """What is asked for."""

    #: Is the memory there, and a driver for it?
    LOOK = 0
    #: Give me bytes of it.
    FETCH = 1
    #: Copy bytes of it to a piece of yours, and say where that is.
    FILL = 2
    #: Say where a piece of yours is, for me to write.
    ROOM = 3
    #: Copy that piece to it.
    DRAIN = 4
    #: I need your pieces no more, and nothing of mine is on its way to them.
    END = 5
    #: I need your pieces no more, and something may be on its way: say when nothing is written.
    BREAK = 6
    #: Change a word.
    ADD = 7
    SWAP = 8


class Status(IntEnum):
    """How an answer begins."""

    DONE = 0
    #: The error follows.
    FAILED = 1
    #: No piece is free: ask again.
    BUSY = 2


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; what it does not need is left as it is.

    Attributes:
        op: What is asked for.
        who: The copy that the pieces are for.
        lane: Which of its pieces.
        slot: The registration,
        key: and the proof that it is still the same.
        offset: Where in it.
        nbytes: How many bytes.
        operand: The number to add, or to put there.
        compare: What has to be there.
        limit: The seconds that are left; less than 0 is no limit.
    """

    op: Op
    slot: int = 0
    key: int = 0
    offset: int = 0
    nbytes: int = 0
    who: bytes = bytes(16)
    lane: int = 0
    operand: int = 0
    compare: int = 0
    limit: float = -1.0

    def pack(self) -> bytes:
        """Makes bytes of it."""
        return _ASK.pack(
            self.op, self.who, self.lane, self.slot, self.key, self.offset, self.nbytes,
            self.operand, self.compare, self.limit,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> Ask:
        """Reads what `pack` wrote.

        Raises:
            RDMATransportError: It is something else.
        """
        try:
            op, who, lane, slot, key, offset, nbytes, operand, compare, limit = _ASK.unpack(data)
            return cls(Op(op), slot, key, offset, nbytes, who, lane, operand, compare, limit)
        except (struct.error, ValueError) as error:
            raise RDMATransportError("staged: a question that nobody knows here") from error
