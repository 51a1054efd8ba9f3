"""The processes that the tests of the conformance kit use: this one or others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesh_core.testing import kill_proc
from mesh_rdma._kit.harness import Harness, HarnessActor

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import ProcMesh
    from mesh_rdma._buffers.buffer import RDMABuffer

__all__ = ["OfferedBuffer", "Process", "Processes"]

# What handles on their way are waited for in these tests.
TRAVEL_S = 0.25


class Process:
    """One process, and the harness in it."""

    def __init__(self, transport: str, allocate: Callable[[int], Any], actor: Any | None) -> None:
        self.transport = transport
        self._allocate = allocate
        self._actor = actor
        self._harness = Harness() if actor is None else None
        self.do("set_travel_limit", TRAVEL_S)

    def do(self, name: str, *arguments: Any) -> Any:
        """Call a method of the `Harness` in the process."""
        if self._harness is not None:
            return getattr(self._harness, name)(*arguments)
        assert self._actor is not None
        return self._actor.do.call_one(name, arguments).get()

    def offer(self, nbytes: int, seed: int | None = None) -> OfferedBuffer:
        """Register memory there: zeros, or a pattern."""
        number, buffer = self.do("offer", self._allocate, nbytes, seed)
        return OfferedBuffer(self, number, buffer)

    def offer_read_only(self, nbytes: int) -> RDMABuffer:
        """Registers memory there that may only be read, with pattern 1."""
        handle: RDMABuffer = self.do("offer_read_only", self._allocate, nbytes)
        return handle.via(self.transport)

    def registrations(self) -> int:
        """Says how many there are, with those whose memory is still kept."""
        good, dying, *_ = self.do("counts")
        return int(good + dying)


class OfferedBuffer:
    """Memory registered in a process, and the handle that it sent."""

    def __init__(self, place: Process, number: int, handle: RDMABuffer) -> None:
        self.place = place
        self.number = number
        #: As it came: it takes the best transport.
        self.handle = handle
        #: The same by the transport under test.
        self.buffer: RDMABuffer = handle.via(place.transport)

    def bytes_at(self, offset: int, length: int) -> bytes:
        """Gives what is there, as its owner sees it."""
        found: bytes = self.place.do("bytes_at", self.number, offset, length)
        return found

    def has_pattern(self, seed: int, length: int, offset: int = 0) -> bool:
        """Whether its owner sees the beginning of a pattern there."""
        return bool(self.place.do("has_pattern", self.number, offset, length, seed))

    def fill(self, seed: int) -> None:
        """Has its owner put a pattern there."""
        self.place.do("fill", self.number, seed)


class Processes:
    """The processes of the tests of one transport, which are started again when one has died."""

    def __init__(self, procs: ProcMesh, is_same_process: bool) -> None:
        self._procs = procs
        self._actors = procs.spawn("rdma_kit", HarnessActor)
        self._is_same_process = is_same_process

    def place(self, transport: str, allocate: Callable[[int], Any], rank: int) -> Process:
        """Gives the process of a rank; all are this one where the transport wants that."""
        actor = None if self._is_same_process else self._actors.slice(ranks=rank)
        return Process(transport, allocate, actor)

    def kill(self, rank: int) -> None:
        """Kills the process of a rank; returns when that is known."""
        pending = self._actors.slice(ranks=rank).do.call_one("wait", ())
        kill_proc(self._procs, rank)
        pending.exception()

    def replace(self, rank: int) -> None:
        """Starts a process again that has died."""
        self._procs.replace(rank)
        self._actors.slice(ranks=rank).do.call_one("set_travel_limit", (TRAVEL_S,)).get()
