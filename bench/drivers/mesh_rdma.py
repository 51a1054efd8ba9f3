"""Drives mesh-rdma: a process that owns memory, and reads of it from this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.drivers.driver import Driver
from mesh_core import Actor, endpoint, this_host
from mesh_rdma import RDMABuffer, VersionedBuffer, VersionedReader, allocate


class _Owner(Actor):
    @endpoint
    def register(self, nbytes: int, kind: str) -> RDMABuffer:
        if kind == "gpu":
            import torch

            return RDMABuffer(torch.ones(nbytes, dtype=torch.uint8, device="cuda"))
        memory = allocate(nbytes) if kind == "arena" else memoryview(bytearray(nbytes))
        # Allocates every page before the measurement.
        memory[::4096] = b"m" * len(memory[::4096])
        return RDMABuffer(memory)

    @endpoint
    def see(self, weights: VersionedReader, after: int) -> int:
        """Wait for the next version and return its last byte."""
        with weights.hold(after=after) as version:
            return version.view()[-1]


class RDMADriver(Driver):
    """One owner, or the given number of receivers."""

    name = "mesh_rdma"
    #: The measured transports, and the kind of memory that each of them requires.
    transports = (("arena", "arena"), ("attach", "plain"), ("unix", "plain"), ("tcp", "plain"))

    def start(self, workers: int, kind: str = "blocking") -> None:
        procs = this_host().spawn_procs({"procs": workers})
        self._owners = procs.spawn("owners", _Owner)

    def register(self, nbytes: int, kind: str) -> RDMABuffer:
        """Make the first process register memory."""
        buffer: RDMABuffer = self._owners.slice(procs=0).register.call_one(nbytes, kind).get()
        return buffer

    def register_each(self, lengths: Sequence[int], kind: str, first: int = 0) -> list[RDMABuffer]:
        """Make processes from rank `first` on register memory, one length each."""
        owners = enumerate(lengths, first)
        buffers = [self._owners.slice(procs=at).register.call_one(n, kind) for at, n in owners]
        return [one.get() for one in buffers]

    def via(self, buffer: RDMABuffer, transport: str) -> RDMABuffer:
        """Return the same buffer through one transport."""
        return buffer.via(transport)

    def read(self, buffer: RDMABuffer, destination: Any) -> None:
        """Read a buffer and wait for completion."""
        buffer.read_into(destination).get()

    def write(self, buffer: RDMABuffer, source: Any) -> None:
        """Write a buffer and wait for completion."""
        buffer.write_from(source).get()

    def published(self, nbytes: int) -> VersionedBuffer:
        """Create memory that is pushed to all workers."""
        return VersionedBuffer(nbytes)

    def push(self, weights: VersionedBuffer, data: Any, last: int) -> list[int]:
        """Publish data; return when each worker has seen it."""
        seen = self._owners.see.call(weights, last)
        weights.publish(data)
        return seen.get().values()

    def stop(self) -> None:
        """Do nothing: the processes exit with the program."""


def driver() -> Driver:
    """Return the driver of `mesh_rdma`."""
    return RDMADriver()
