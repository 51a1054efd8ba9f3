"""The interface of transports: register, connect, post, poll."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Channel",
    "Completion",
    "CopyLease",
    "Kind",
    "Region",
    "Registration",
    "Request",
    "Transport",
]


class Kind(Enum):
    """The operation that a request performs on the remote buffer."""

    READ = "read"
    WRITE = "write"
    FETCH_ADD = "fetch_add"
    COMPARE_AND_SWAP = "compare_and_swap"


class Region(NamedTuple):
    """A range of memory of this process.

    Attributes:
        address: The address of the first byte.
        nbytes: The size in bytes.
        is_writable: Whether the memory may be written.
        device: The number of the CUDA device that contains the memory, or None for host memory.
        memory_owner: An object that keeps the memory alive, for a transport that needs it for
            longer than it is registered.
    """

    address: int
    nbytes: int
    is_writable: bool
    device: int | None = None
    memory_owner: object = None


class Registration(ABC):
    """Memory that is registered with a transport; it does not move while it is registered."""

    @property
    @abstractmethod
    def descriptor(self) -> bytes:
        """The data with which another process can access the memory; a few dozen bytes."""

    @abstractmethod
    def release(self) -> None:
        """End the registration; afterwards, no process can use the descriptor. Called once."""


@dataclass(frozen=True, eq=False)
class Request:
    """One transfer between local memory and a remote registration.

    Attributes:
        kind: The operation.
        local: The local memory: the destination of a read or the source of a write. For atomic
            operations, it consists of eight bytes, which receive the previous value.
        descriptor: The remote registration.
        offset: The offset in the registration, in bytes.
        operand: The number to add or to store.
        compare: The expected value for `COMPARE_AND_SWAP`.
        copy_lease: Announces a copy to the owner of the buffer, for transports that cannot stop
            copies when a registration is released: a release waits until the lease has ended. It
            is only available if both processes are on one machine.
    """

    kind: Kind
    local: Region
    descriptor: bytes
    offset: int
    operand: int = 0
    compare: int = 0
    copy_lease: Callable[[], CopyLease] | None = None


class CopyLease(Protocol):
    """The announcement that a copy of a buffer may be in progress."""

    def check(self) -> None:
        """Check that the copy may continue: before each piece, and again after the last one.

        Raises:
            RDMAReleased: The buffer was released.
            RDMAPeerDied: The owner is gone.
        """

    def end(self) -> None:
        """End the lease; no byte may be copied afterwards."""


class Completion(NamedTuple):
    """A request that has ended.

    Attributes:
        request: The posted request.
        error: The reason for its failure, or None.
    """

    request: Request
    error: Exception | None


class Channel(ABC):
    """A connection of a transport to one other process; all methods are thread-safe."""

    def refusal_of(self, descriptor: bytes) -> str | None:
        """Check whether a remote registration can be reached, before it is used.

        Returns:
            The reason if it cannot be reached, in which case another transport is used; otherwise
            None.

        Raises:
            RDMAReleased: The registration was released.
        """
        return None

    @abstractmethod
    def post(self, request: Request) -> None:
        """Start a transfer; this blocks only while the queue is full.

        Raises:
            RDMAError: The transfer cannot start.
        """

    @abstractmethod
    def poll(self, timeout: float) -> Sequence[Completion]:
        """Return requests that have ended, each once; wait up to `timeout` seconds for the first.

        Raises:
            RDMAError: The channel has failed; none of the posted requests is running anymore.
        """

    @abstractmethod
    def abort(self, request: Request) -> None:
        """Abort a transfer; after this returns, no byte is written by it.

        Other requests of the channel may fail as a consequence; `poll` reports them with
        `RDMACancelled`, and they are posted again.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all resources; requests that have not ended are aborted."""


class Transport(ABC):
    """A method of copying memory; each process that uses it has one instance.

    Attributes:
        level: The rank of the transport. The lowest level that works is selected. The built-in
            transports have these levels: memory of the same process 0, the shared arena 10,
            attached memory 20, sockets of one machine 40, TCP 50.
        has_atomics: Whether it supports `FETCH_ADD` and `COMPARE_AND_SWAP`; otherwise, the owner
            executes them.
        reaches_host: Whether it can be used for buffers in host memory.
        reaches_devices: Whether either side may be device memory. Otherwise, it never gets the
            address of device memory.
    """

    level: ClassVar[int] = 30
    has_atomics: ClassVar[bool] = False
    reaches_host: ClassVar[bool] = True
    reaches_devices: ClassVar[bool] = False

    @abstractmethod
    def probe(self) -> str | None:
        """Check whether it can be used here; return None, or the reason and how to fix it."""

    @abstractmethod
    def register(self, region: Region) -> Registration:
        """Register memory, either for access by other processes or as the local side of transfers.

        Raises:
            RDMAError: The memory cannot be registered.
        """

    @abstractmethod
    def connect(self, exchange: Callable[[bytes], bytes]) -> Channel:
        """Connect to another process.

        Args:
            exchange: Sends a request to `accept` of the same transport in the other process and
                returns the response; it can be called any number of times.

        Raises:
            RDMAError: The other process cannot be reached over this transport; the message gives
                the reason.
        """

    @abstractmethod
    def accept(self, request: bytes) -> bytes:
        """Handle a request of `connect` in another process, which receives errors raised here."""
