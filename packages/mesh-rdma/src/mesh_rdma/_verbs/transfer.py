"""A transfer, and its pieces of one work request each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mesh_rdma._verbs.binding import Opcode
from mesh_rdma._verbs.messages import Descriptor
from mesh_rdma._verbs.registrations import Entry

#: The length of the operand of an atomic operation.
WORD_LEN = 8


@dataclass(eq=False, slots=True)
class Transfer:
    """A requested transfer and its progress."""

    #: The request that the caller identifies it by.
    request: Any
    opcode: Opcode
    local: Entry
    local_offset: int
    remote: Descriptor
    remote_offset: int
    length: int
    operand: int = 0
    swap: int = 0
    #: The bytes already split into pieces, the pieces not done yet, and the pieces in flight.
    split_len: int = 0
    pieces: int = 0
    in_flight: int = 0
    error: Exception | None = None
    is_aborted: bool = False

    @property
    def is_atomic(self) -> bool:
        """Whether it is an atomic operation, which must not be executed twice."""
        return self.opcode in (Opcode.FETCH_ADD, Opcode.COMPARE_AND_SWAP)

    @property
    def is_wanted(self) -> bool:
        """Whether the remaining pieces are still to be executed."""
        return self.error is None and not self.is_aborted

    @property
    def is_over(self) -> bool:
        """Whether none of its pieces is or will be in flight."""
        if not self.is_wanted:
            return self.in_flight == 0
        return self.split_len == self.length and self.pieces == 0


@dataclass(eq=False, slots=True)
class Piece:
    """A part of a transfer."""

    transfer: Transfer
    offset: int
    length: int
    attempts: int = 0
