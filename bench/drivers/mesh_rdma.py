"""Drives mesh-rdma: a process that owns memory, and reads of it from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.drivers.driver import Driver
from mesh_core import Actor, endpoint, this_host
from mesh_rdma import RDMABuffer, VersionedBuffer, VersionedReader, allocate


class _Owner(Actor):
    @endpoint
    def lend(self, nbytes: int, kind: str) -> RDMABuffer:
        if kind == "gpu":
            import torch

            return RDMABuffer(torch.ones(nbytes, dtype=torch.uint8, device="cuda"))
        memory = allocate(nbytes) if kind == "arena" else memoryview(bytearray(nbytes))
        # Each page is there before anything is timed.
        memory[::4096] = b"m" * len(memory[::4096])
        return RDMABuffer(memory)

    @endpoint
    def see(self, weights: VersionedReader, after: int) -> int:
        """Brings the next version into view, and gives its last byte."""
        with weights.hold(after=after) as version:
            return version.view()[-1]


class RDMADriver(Driver):
    """One owner, or as many receivers as are wanted."""

    name = "mesh_rdma"
    #: The ways that are measured, and the kind of memory that each is for.
    ways = (("arena", "arena"), ("attach", "plain"), ("unix", "plain"), ("tcp", "plain"))

    def start(self, workers: int, kind: str = "blocking") -> None:
        procs = this_host().spawn_procs({"procs": workers})
        self._owners = procs.spawn("owners", _Owner)

    def lend(self, nbytes: int, kind: str) -> RDMABuffer:
        """Has the first process offer memory."""
        buffer: RDMABuffer = self._owners.slice(procs=0).lend.call_one(nbytes, kind).get()
        return buffer

    def lend_each(self, lengths: Sequence[int], kind: str, first: int = 0) -> list[RDMABuffer]:
        """Has processes offer memory, one each, from the one of this number on."""
        owners = enumerate(lengths, first)
        lent = [self._owners.slice(procs=at).lend.call_one(n, kind) for at, n in owners]
        return [one.get() for one in lent]

    def reached(self, buffer: RDMABuffer, way: str) -> RDMABuffer:
        """Gives the same buffer by one transport."""
        return buffer.via(way)

    def read(self, buffer: RDMABuffer, destination: Any) -> None:
        """Reads a buffer, and waits."""
        buffer.read_into(destination).get()

    def write(self, buffer: RDMABuffer, source: Any) -> None:
        """Writes a buffer, and waits."""
        buffer.write_from(source).get()

    def published(self, nbytes: int) -> VersionedBuffer:
        """Makes memory that is pushed to all workers."""
        return VersionedBuffer(nbytes)

    def push(self, weights: VersionedBuffer, data: Any, last: int) -> list[int]:
        """Publishes data; returns when each worker has it in view."""
        seen = self._owners.see.call(weights, last)
        weights.publish(data)
        return seen.get().values()

    def stop(self) -> None:
        """Nothing: the processes end with the program."""


def driver() -> Driver:
    """Returns the driver of `mesh_rdma`."""
    return RDMADriver()
