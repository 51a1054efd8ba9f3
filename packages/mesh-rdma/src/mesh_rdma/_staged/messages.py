"""Requests to a process whose device memory is copied through host memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from mesh_rdma._errors import RDMATransportError

__all__ = ["STAGED", "Op", "StagedRequest", "Status"]

#: The name of the transport, and of the handler of its requests.
STAGED = "staged"

_REQUEST = struct.Struct("<B16sBIQQQQQd")


class Op(IntEnum):
    """The operation of a request."""

    #: Check that the registration is valid and that the owner uses a driver.
    LOOK = 0
    #: Return bytes of the registration.
    FETCH = 1
    #: Copy bytes of the registration to a pinned piece of the owner; return the handle of the
    #: piece.
    FILL = 2
    #: Return the handle of a pinned piece of the owner, which the client then writes.
    ACQUIRE = 3
    #: Copy that piece to the registration.
    DRAIN = 4
    #: Release the pieces: the client has no write to them in flight.
    END = 5
    #: Discard the pieces, which a write in flight may still reach; respond once no copy runs.
    BREAK = 6
    #: Change a word atomically.
    ADD = 7
    SWAP = 8


class Status(IntEnum):
    """The first byte of a response."""

    DONE = 0
    #: An encoded error follows.
    FAILED = 1
    #: No piece is free: send the request again.
    BUSY = 2


@dataclass(frozen=True, slots=True)
class StagedRequest:
    """A request; operations ignore the fields that they do not need.

    Attributes:
        op: The operation.
        copy_id: The id of the copy that the pieces belong to.
        worker: The worker of the copy; each worker has one piece.
        slot: The slot of the registration.
        key: The key that is valid for this registration of the slot only.
        offset: The offset in the registration, in bytes.
        nbytes: The number of bytes.
        operand: The number to add or to store.
        compare: The expected value of a compare-and-swap.
        limit: The time limit in seconds; a negative number means no limit.
    """

    op: Op
    slot: int = 0
    key: int = 0
    offset: int = 0
    nbytes: int = 0
    copy_id: bytes = bytes(16)
    worker: int = 0
    operand: int = 0
    compare: int = 0
    limit: float = -1.0

    def pack(self) -> bytes:
        """Encode the request."""
        return _REQUEST.pack(
            self.op, self.copy_id, self.worker, self.slot, self.key, self.offset, self.nbytes,
            self.operand, self.compare, self.limit,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> StagedRequest:
        """Decode a request.

        Raises:
            RDMATransportError: The bytes are malformed.
        """
        try:
            op, copy_id, worker, slot, key, offset, nbytes, operand, compare, limit = (
                _REQUEST.unpack(data)
            )
            return cls(Op(op), slot, key, offset, nbytes, copy_id, worker, operand, compare, limit)
        except (struct.error, ValueError) as error:
            raise RDMATransportError("staged: a malformed request") from error
