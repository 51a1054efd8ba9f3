"""A yard as tests see it: in this process, or in another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesh_core.testing import kill_proc
from mesh_rdma._kit.harness import Yard, YardActor

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import ProcMesh
    from mesh_rdma._buffers.buffer import RDMABuffer

__all__ = ["Offered", "Place", "Places"]

# What handles on their way are waited for in these tests.
TRAVEL_S = 0.25


class Place:
    """One process, for all that a test has done there."""

    def __init__(self, transport: str, allocate: Callable[[int], Any], actor: Any | None) -> None:
        self.transport = transport
        self._allocate = allocate
        self._actor = actor
        self._yard = Yard() if actor is None else None
        self.do("set_travel_limit", TRAVEL_S)

    def do(self, name: str, *arguments: Any) -> Any:
        """Calls a method of `Yard` there."""
        if self._yard is not None:
            return getattr(self._yard, name)(*arguments)
        assert self._actor is not None
        return self._actor.do.call_one(name, arguments).get()

    def offer(self, nbytes: int, seed: int | None = None) -> Offered:
        """Registers memory there: zeros, or a pattern."""
        number, buffer = self.do("offer", self._allocate, nbytes, seed)
        return Offered(self, number, buffer)

    def offer_read_only(self, nbytes: int) -> RDMABuffer:
        """Registers memory there that may only be read, with pattern 1."""
        handle: RDMABuffer = self.do("offer_read_only", self._allocate, nbytes)
        return handle.via(self.transport)

    def registrations(self) -> int:
        """Says how many there are, with those whose memory is still kept."""
        good, dying, *_ = self.do("counts")
        return int(good + dying)


class Offered:
    """Memory that a place offers, and the handle of it that came here."""

    def __init__(self, place: Place, number: int, handle: RDMABuffer) -> None:
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


class Places:
    """The processes of the tests of one transport, which are started again when one has died."""

    def __init__(self, procs: ProcMesh, is_same_process: bool) -> None:
        self._procs = procs
        self._actors = procs.spawn("rdma_kit", YardActor)
        self._is_same_process = is_same_process

    def place(self, transport: str, allocate: Callable[[int], Any], rank: int) -> Place:
        """Gives the process of a rank; all are this one where the transport wants that."""
        actor = None if self._is_same_process else self._actors.slice(ranks=rank)
        return Place(transport, allocate, actor)

    def kill(self, rank: int) -> None:
        """Kills the process of a rank; returns when that is known."""
        pending = self._actors.slice(ranks=rank).do.call_one("wait", ())
        kill_proc(self._procs, rank)
        pending.exception()

    def replace(self, rank: int) -> None:
        """Starts a process again that has died."""
        self._procs.replace(rank)
        self._actors.slice(ranks=rank).do.call_one("set_travel_limit", (TRAVEL_S,)).get()
