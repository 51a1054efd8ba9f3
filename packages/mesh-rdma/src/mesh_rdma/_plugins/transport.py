"""The protocol of transports: register, connect, post, poll."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Channel",
    "Claim",
    "Finished",
    "Kind",
    "Region",
    "Registration",
    "Request",
    "Transport",
]


class Kind(Enum):
    """What a request does with the buffer at the other side."""

    READ = "read"
    WRITE = "write"
    FETCH_ADD = "fetch_add"
    COMPARE_AND_SWAP = "compare_and_swap"


class Region(NamedTuple):
    """A range of this process's memory.

    Attributes:
        address: Where it begins.
        nbytes: How many bytes it has.
        is_writable: Whether it may be written.
        device: The number of the CUDA device whose memory it is, or None: then the processor
            reaches it.
        keeper: What keeps the memory where it is, for a transport that needs it for longer than it
            is registered.
    """

    address: int
    nbytes: int
    is_writable: bool
    device: int | None = None
    keeper: object = None


class Registration(ABC):
    """Memory that a transport knows: from now on it does not move."""

    @property
    @abstractmethod
    def descriptor(self) -> bytes:
        """What the transport of another process needs to use it; a few dozen bytes."""

    @abstractmethod
    def release(self) -> None:
        """Ends it: when this returns, no process can use the descriptor any more. Called once."""


@dataclass(frozen=True, eq=False)
class Request:
    """One transfer between memory here and a registration of the other side.

    Attributes:
        kind: What to do.
        local: The memory here: where a read puts its bytes, or a write takes them from. For atomic
            operations eight bytes, which get what was there.
        descriptor: The registration of the other side.
        offset: Where in it, in bytes.
        operand: The number to add, or to put there.
        compare: What has to be there for `COMPARE_AND_SWAP`.
        claim: Announces a copy to the buffer's owner, for transports that do not end copies when a
            registration is released: a release waits until the claim has ended. Only where both
            processes are on one machine.
    """

    kind: Kind
    local: Region
    descriptor: bytes
    offset: int
    operand: int = 0
    compare: int = 0
    claim: Callable[[], Claim] | None = None


class Claim(Protocol):
    """The announcement that a copy of a buffer may be under way."""

    def check(self) -> None:
        """Looks whether to go on: before each piece, and once more behind the last.

        Raises:
            RDMAReleased: The buffer was released.
            RDMAPeerDied: Its owner is gone.
        """

    def end(self) -> None:
        """Ends it: nothing is copied any more."""


class Finished(NamedTuple):
    """A request that has ended.

    Attributes:
        request: The one that was posted.
        error: Why it failed, or None.
    """

    request: Request
    error: Exception | None


class Channel(ABC):
    """A connection of a transport to one other process. Its methods are called by any thread."""

    def refusal_of(self, descriptor: bytes) -> str | None:
        """Looks whether a registration of the other side can be reached, before it is used.

        Gives the reason if not: then another way is taken.

        Raises:
            RDMAReleased: It is gone.
        """
        return None

    @abstractmethod
    def post(self, request: Request) -> None:
        """Begins a transfer; waits for nothing but room in the queue.

        Raises:
            RDMAError: It cannot be begun.
        """

    @abstractmethod
    def poll(self, timeout: float) -> Sequence[Finished]:
        """Gives what has ended, each once; waits so many seconds for the first.

        Raises:
            RDMAError: The channel is broken: nothing that was posted runs any more.
        """

    @abstractmethod
    def abort(self, request: Request) -> None:
        """Ends a transfer; when this returns, no byte of it is written any more.

        Others of the channel may fail by it: `poll` says so, and they are posted again.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives all back; what was posted and has not ended is aborted."""


class Transport(ABC):
    """A way to move memory. There is one object in each process that uses it.

    Attributes:
        level: Which ways are better: memory of the process itself has 0, the shared arena 10,
            attached memory 20, sockets of one machine 40, TCP 50. The lowest that works is taken.
        has_atomics: Whether it can do `FETCH_ADD` and `COMPARE_AND_SWAP`; else the owner does them.
        reaches_host: Whether it is a way to buffers in memory that the processor reaches.
        reaches_devices: Whether memory of a device may be on either side. Without that it never
            sees an address of a device.
    """

    level: ClassVar[int] = 30
    has_atomics: ClassVar[bool] = False
    reaches_host: ClassVar[bool] = True
    reaches_devices: ClassVar[bool] = False

    @abstractmethod
    def probe(self) -> str | None:
        """Looks whether it can be used here; gives the reason if not, and what to do about it."""

    @abstractmethod
    def register(self, region: Region) -> Registration:
        """Takes memory in: as the goal of others, or as the local side of transfers.

        Raises:
            RDMAError: The memory cannot be registered.
        """

    @abstractmethod
    def connect(self, exchange: Callable[[bytes], bytes]) -> Channel:
        """Connects to the other side.

        Args:
            exchange: Asks `accept` of the same transport there, as often as needed.

        Raises:
            RDMAError: The other side cannot be reached in this way; the message says why.
        """

    @abstractmethod
    def accept(self, question: bytes) -> bytes:
        """Answers what `connect` of another process asks; whatever it raises, that one gets."""
