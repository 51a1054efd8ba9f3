"""What the verbs transport asks of a Python binding of libibverbs, and nothing more.

Both bindings that there are stand behind it, so that either may go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple, Protocol

#: What a port says that can be sent through.
PORT_ACTIVE = 4

#: What a completion says that went well, and what one says whose queue pair had failed before.
SUCCESS, FLUSHED = 0, 5


class Opcode(IntEnum):
    """What a work request does, by its number in libibverbs."""

    WRITE = 0
    READ = 4
    COMPARE_AND_SWAP = 5
    FETCH_ADD = 6


class Access(IntFlag):
    """What may be done to registered memory, and through a queue pair, by the numbers there."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8


#: Everything that the other end may do.
REMOTE = Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC


@dataclass(slots=True)
class WorkRequest:
    """A work request: one operation between one range of memory here and one there."""

    id: int
    opcode: Opcode
    local_address: int
    length: int
    local_key: int
    remote_address: int
    remote_key: int
    is_signalled: bool = True
    #: What is added, or compared with.
    operand: int = 0
    #: What is stored where the comparison holds.
    swap: int = 0


class Completion(NamedTuple):
    """What became of a work request."""

    id: int
    status: int
    reason: str


@dataclass(frozen=True)
class Limits:
    """What a device can do at most."""

    ports: int
    queue_len_max: int
    #: Reads and atomics of one queue pair that are under way at a time.
    reads_max: int


@dataclass(frozen=True)
class PortState:
    """What a device says of one of its ports."""

    state: int
    lid: int
    mtu: int
    message_max: int


@dataclass(frozen=True)
class QueuePairEnd:
    """One end of a connection: what a queue pair must know of its peer, or of itself."""

    gid: bytes
    lid: int
    mtu: int
    number: int
    first_packet: int
    reads_max: int


class Region(Protocol):
    """Memory that a device may reach."""

    #: What the device calls the first byte of it, in requests of this side and of the other.
    address: int
    local_key: int
    remote_key: int

    def close(self) -> None:
        """Takes the memory from the device; requests for it fail from then on."""
        ...


class QueuePair(Protocol):
    """A reliable connected queue pair, with a completion queue of its own."""

    number: int

    def connect(self, port: int, gid_index: int, own: QueuePairEnd, peer: QueuePairEnd) -> None:
        """Makes it ready to send to a peer, and to be sent to."""
        ...

    def post(self, works: Sequence[WorkRequest]) -> None:
        """Hands over work requests, in this order."""
        ...

    def poll(self, len_max: int) -> list[Completion]:
        """Returns what was finished since, oldest first."""
        ...

    def arm(self) -> int | None:
        """Asks to be told of the next completion; returns the descriptor that tells by being read.

        None where the binding has none.
        """
        ...

    def fail(self) -> None:
        """Has all that is under way end with an error."""
        ...

    def close(self) -> None:
        """Destroys it: no byte is moved for it any more."""
        ...


class Device(Protocol):
    """A network adapter that was opened, with one protection domain for all on it."""

    name: str
    limits: Limits

    def port(self, number: int) -> PortState:
        """Returns the state of a port."""
        ...

    def register(self, address: int, length: int, access: Access) -> Region:
        """Lets the device reach memory of this process."""
        ...

    def register_dmabuf(
        self, descriptor: int, offset: int, address: int, length: int, access: Access
    ) -> Region:
        """Lets the device reach memory of another device, which has exported it."""
        ...

    def queue_pair(self, depth: int) -> QueuePair:
        """Makes a queue pair with room for so many work requests."""
        ...

    def close(self) -> None:
        """Closes the device, after everything on it was closed."""
        ...


class Binding(Protocol):
    """A Python package that knows libibverbs."""

    name: str

    def devices(self) -> list[str]:
        """Returns the names of the devices that are there; OSError if the kernel knows none."""
        ...

    def open(self, device: str) -> Device:
        """Opens a device; OSError if it is not there or may not be opened."""
        ...
