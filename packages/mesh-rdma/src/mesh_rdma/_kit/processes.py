"""The processes that the conformance tests use: the current one or others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesh_core.testing import kill_proc
from mesh_rdma._kit.harness import Harness, HarnessActor

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import ProcMesh
    from mesh_rdma._buffers.buffer import RDMABuffer

__all__ = ["TRANSIT_S", "Process", "Processes", "RegisteredBuffer"]

# How long handles may be in transit in these tests.
TRANSIT_S = 0.25


class Process:
    """One process, and the harness in it."""

    def __init__(self, transport: str, allocate: Callable[[int], Any], actor: Any | None) -> None:
        self.transport = transport
        self._allocate = allocate
        self._actor = actor
        self._harness = Harness() if actor is None else None
        self.do("set_transit_timeout", TRANSIT_S)

    def do(self, name: str, *arguments: Any) -> Any:
        """Call a method of the `Harness` in the process."""
        if self._harness is not None:
            return getattr(self._harness, name)(*arguments)
        assert self._actor is not None
        return self._actor.do.call_one(name, arguments).get()

    def register(self, nbytes: int, seed: int | None = None) -> RegisteredBuffer:
        """Register memory in the process: zeros, or a pattern."""
        number, buffer = self.do("register", self._allocate, nbytes, seed)
        return RegisteredBuffer(self, number, buffer)

    def register_read_only(self, nbytes: int) -> RDMABuffer:
        """Register read-only memory in the process, with pattern 1."""
        handle: RDMABuffer = self.do("register_read_only", self._allocate, nbytes)
        return handle.via(self.transport)

    def registrations(self) -> int:
        """Return the number of registrations, including released ones that are still kept."""
        good, dying, *_ = self.do("counts")
        return int(good + dying)


class RegisteredBuffer:
    """Memory that is registered in a process, and the handle that the process sent."""

    def __init__(self, place: Process, number: int, handle: RDMABuffer) -> None:
        self.place = place
        self.number = number
        #: The received handle; it uses the best transport.
        self.handle = handle
        #: The same handle, restricted to the transport under test.
        self.buffer: RDMABuffer = handle.via(place.transport)

    def bytes_at(self, offset: int, length: int) -> bytes:
        """Return bytes as the owner sees them."""
        found: bytes = self.place.do("bytes_at", self.number, offset, length)
        return found

    def has_pattern(self, seed: int, length: int, offset: int = 0) -> bool:
        """Return whether the owner sees the beginning of a pattern at `offset`."""
        return bool(self.place.do("has_pattern", self.number, offset, length, seed))

    def fill(self, seed: int) -> None:
        """Make the owner write a pattern to the memory."""
        self.place.do("fill", self.number, seed)


class Processes:
    """The processes of the tests of one transport, which are restarted after a test kills them."""

    def __init__(self, procs: ProcMesh, is_same_process: bool) -> None:
        self._procs = procs
        self._actors = procs.spawn("rdma_kit", HarnessActor)
        self._is_same_process = is_same_process

    def place(self, transport: str, allocate: Callable[[int], Any], rank: int) -> Process:
        """Return the process of a rank, or the current one if the transport requires that."""
        actor = None if self._is_same_process else self._actors.slice(ranks=rank)
        return Process(transport, allocate, actor)

    def kill(self, rank: int) -> None:
        """Kill the process of a rank; return when its death is known."""
        pending = self._actors.slice(ranks=rank).do.call_one("wait", ())
        kill_proc(self._procs, rank)
        pending.exception()

    def replace(self, rank: int) -> None:
        """Restart a process that has died."""
        self._procs.replace(rank)
        self._actors.slice(ranks=rank).do.call_one("set_transit_timeout", (TRANSIT_S,)).get()
