"""Both ends of a channel over a fabric in this process."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

from verbs_fabric import Fabric

from mesh_rdma._verbs.messages import Descriptor
from mesh_rdma._verbs.transport import VerbsTransport
from mesh_rdma.spi import Kind, Region, Request


class FabricLink:
    """A user and an owner, with memory at both ends."""

    def __init__(self, fabric: Fabric, folder: Path, nbytes: int) -> None:
        self.fabric = fabric
        self._folder = fabric.gids(folder)
        self.owner, self.user = self._transport(), self._transport()
        self.here, self.there = mmap.mmap(-1, nbytes), mmap.mmap(-1, nbytes)
        self.registration = self.owner.register(self.region_of(self.there))
        self.local = self.user.register(self.region_of(self.here))
        #: The error of the control connection once the owner is dead.
        self.death: Exception | None = None
        self.channel = self.user.connect(self._exchange)

    def _transport(self) -> VerbsTransport:
        transport = VerbsTransport(lambda: self.fabric, self._folder)
        assert transport.probe() is None
        return transport

    def _exchange(self, request: bytes) -> bytes:
        if self.death:
            raise self.death
        return self.owner.accept(request)

    def region_of(self, memory: mmap.mmap, offset: int = 0, nbytes: int | None = None) -> Region:
        """Return a range of memory."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return Region(address + offset, len(memory) if nbytes is None else nbytes, True)

    def post(
        self, kind: Kind, offset: int, nbytes: int, there: int, operand: int = 0, **more: bytes
    ) -> Request:
        """Post a request for a range of `here`."""
        region = self.region_of(self.here, offset, nbytes)
        return self.post_region(kind, region, there, operand, **more)

    def post_region(
        self,
        kind: Kind,
        region: Region,
        there: int = 0,
        operand: int = 0,
        descriptor: bytes | None = None,
    ) -> Request:
        """Post a request for any memory."""
        request = Request(kind, region, descriptor or self.registration.descriptor, there, operand)
        self.channel.post(request)
        return request

    def finish(self, count: int) -> dict[Request, Exception | None]:
        """Wait until `count` requests have ended."""
        ended: dict[Request, Exception | None] = {}
        while len(ended) < count:
            found = self.channel.poll(5)
            assert found, f"{len(ended)} of {count} have ended, and no more do"
            ended.update(found)
        return ended

    def do(
        self, kind: Kind, offset: int, nbytes: int, there: int, operand: int = 0
    ) -> Exception | None:
        """Execute a request, and return its error."""
        request = self.post(kind, offset, nbytes, there, operand)
        return self.finish(1)[request]

    def forged(self) -> bytes:
        """Return the descriptor with invalid keys."""
        real = Descriptor.unpack(self.registration.descriptor)
        return Descriptor(real.length, True, tuple((one, 1 << 31) for one, _ in real.keys)).pack()

    def owner_pairs_vanish(self) -> None:
        """Make the adapters of the owner drop all connections."""
        self.owner._open().responder.close()

    def another_user(self) -> list[int]:
        """Connect one more process; return the numbers of its queue pairs."""
        before = set(self.fabric.pairs)
        rails = self._transport().connect(self.owner.accept)
        theirs = [pair.number for pair in self.fabric.pairs.values() if pair.depth > 1]
        assert rails
        return sorted(set(theirs) - before)

    def close(self) -> None:
        """Release all resources."""
        self.channel.close()
        self.local.release()
        self.registration.release()
