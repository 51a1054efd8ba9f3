"""A transfer under way, and the pieces of it that are one work request each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mesh_rdma._verbs.binding import Opcode
from mesh_rdma._verbs.messages import Descriptor
from mesh_rdma._verbs.registrations import Entry

#: What an atomic operation works on.
WORD_LEN = 8


@dataclass(eq=False, slots=True)
class Transfer:
    """What somebody has asked for, and how far it has come."""

    #: What they know it by.
    request: Any
    opcode: Opcode
    local: Entry
    local_offset: int
    remote: Descriptor
    remote_offset: int
    length: int
    operand: int = 0
    swap: int = 0
    #: Bytes that were cut into pieces; pieces not done yet; those of them that are under way.
    cut: int = 0
    pieces: int = 0
    under_way: int = 0
    error: Exception | None = None
    is_aborted: bool = False

    @property
    def is_atomic(self) -> bool:
        """Whether it works on one word, and must not be done twice."""
        return self.opcode in (Opcode.FETCH_ADD, Opcode.COMPARE_AND_SWAP)

    @property
    def is_wanted(self) -> bool:
        """Whether what is left of it is still to be done."""
        return self.error is None and not self.is_aborted

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is under way, and nothing of it will be."""
        if not self.is_wanted:
            return self.under_way == 0
        return self.cut == self.length and self.pieces == 0


@dataclass(eq=False, slots=True)
class Piece:
    """A part of a transfer."""

    transfer: Transfer
    offset: int
    length: int
    attempts: int = 0
