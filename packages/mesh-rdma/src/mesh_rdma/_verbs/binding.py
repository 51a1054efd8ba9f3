"""The interface that the verbs transport requires of a Python binding of libibverbs.

Both existing bindings implement it, so either of them can be replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple, Protocol

#: The state of an active port.
PORT_ACTIVE = 4

#: The completion status of success, and of a request flushed because its queue pair failed.
SUCCESS, FLUSHED = 0, 5


class Opcode(IntEnum):
    """The operation of a work request, as numbered by libibverbs."""

    WRITE = 0
    READ = 4
    COMPARE_AND_SWAP = 5
    FETCH_ADD = 6


class Access(IntFlag):
    """The access flags of registered memory and of queue pairs, as numbered by libibverbs."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8


#: All operations of the peer.
REMOTE = Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC


@dataclass(slots=True)
class WorkRequest:
    """One operation between a range of local memory and a range of remote memory."""

    id: int
    opcode: Opcode
    local_address: int
    length: int
    local_key: int
    remote_address: int
    remote_key: int
    is_signalled: bool = True
    #: The number to add or to compare with.
    operand: int = 0
    #: The number to store if the comparison succeeds.
    swap: int = 0


class Completion(NamedTuple):
    """The result of a work request."""

    id: int
    status: int
    reason: str


@dataclass(frozen=True)
class Limits:
    """The limits of a device."""

    ports: int
    queue_len_max: int
    #: The number of reads and atomics of one queue pair that can be in flight.
    reads_max: int


@dataclass(frozen=True)
class PortState:
    """The attributes of a port, as reported by its device."""

    state: int
    lid: int
    mtu: int
    message_max: int


@dataclass(frozen=True)
class QueuePairEnd:
    """One end of a connection: the attributes of a queue pair that its peer needs."""

    gid: bytes
    lid: int
    mtu: int
    number: int
    first_packet: int
    reads_max: int


class Region(Protocol):
    """Memory that is registered with a device."""

    #: The device address of the first byte, for requests of both sides.
    address: int
    local_key: int
    remote_key: int

    def close(self) -> None:
        """Deregister the memory; later requests for it fail."""
        ...


class QueuePair(Protocol):
    """A reliable connected queue pair with its completion queue."""

    number: int

    def connect(self, port: int, gid_index: int, own: QueuePairEnd, peer: QueuePairEnd) -> None:
        """Connect to a peer, so that both sides can send."""
        ...

    def post(self, works: Sequence[WorkRequest]) -> None:
        """Post work requests, in this order."""
        ...

    def poll(self, len_max: int) -> list[Completion]:
        """Return new completions, oldest first."""
        ...

    def arm(self) -> int | None:
        """Request a notification of the next completion; return its file descriptor.

        The descriptor becomes readable on a completion. None if the binding does not support that.
        """
        ...

    def fail(self) -> None:
        """Move the queue pair to the error state, so that all requests in flight fail."""
        ...

    def close(self) -> None:
        """Destroy the queue pair; afterwards, it transfers no byte."""
        ...


class Device(Protocol):
    """An open network adapter with one protection domain."""

    name: str
    limits: Limits

    def port(self, number: int) -> PortState:
        """Return the state of a port."""
        ...

    def register(self, address: int, length: int, access: Access) -> Region:
        """Register memory of this process."""
        ...

    def register_dmabuf(
        self, descriptor: int, offset: int, address: int, length: int, access: Access
    ) -> Region:
        """Register memory of another device, which has exported it."""
        ...

    def queue_pair(self, depth: int) -> QueuePair:
        """Create a queue pair with a capacity of `depth` work requests."""
        ...

    def close(self) -> None:
        """Close the device, after all of its objects have been closed."""
        ...


class Binding(Protocol):
    """A Python package that binds libibverbs."""

    name: str

    def devices(self) -> list[str]:
        """Return the names of the devices; raise OSError if the kernel does not support verbs."""
        ...

    def open(self, device: str) -> Device:
        """Open a device; raise OSError if it does not exist or cannot be opened."""
        ...
