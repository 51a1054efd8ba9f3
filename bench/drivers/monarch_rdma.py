"""Drives the peer's buffers, `torchmonarch` 0.7.0, which use TCP if no NIC is available."""

from __future__ import annotations

import os
import sys
from typing import Any

from monarch.actor import Actor, endpoint, this_host  # type: ignore[import-not-found]
from monarch.rdma import RDMABuffer  # type: ignore[import-not-found]

from bench.drivers.driver import Driver


class _Owner(Actor):  # type: ignore[misc]
    @endpoint  # type: ignore[untyped-decorator]
    def register(self, nbytes: int) -> Any:
        self._memory = memoryview(bytearray(nbytes))
        self._memory[::4096] = b"m" * len(self._memory[::4096])
        return RDMABuffer(self._memory)


class _Reader(Actor):  # type: ignore[misc]
    """Reads must be made in an actor, because its process has the manager that they require."""

    @endpoint  # type: ignore[untyped-decorator]
    async def times(self, buffer: Any, nbytes: int, count: int) -> list[float]:
        import time

        destination = memoryview(bytearray(nbytes))
        destination[::4096] = b"m" * len(destination[::4096])
        await buffer.read_into(destination)
        times = []
        for _ in range(count):
            started = time.perf_counter()
            await buffer.read_into(destination)
            times.append(time.perf_counter() - started)
        return times


class MonarchRDMADriver(Driver):
    """An owner and a reader."""

    name = "monarch_rdma"

    def start(self, workers: int, kind: str = "blocking") -> None:
        self._owner = this_host().spawn_procs({"procs": 1}).spawn("owner", _Owner)
        self._reader = this_host().spawn_procs({"procs": 1}).spawn("reader", _Reader)

    def read_times(self, nbytes: int, count: int) -> list[float]:
        """Read memory of one process in another; return the duration of each read in seconds."""
        buffer = self._owner.register.call_one(nbytes).get()
        times: list[float] = self._reader.times.call_one(buffer, nbytes, count).get()
        return times

    def close(self) -> None:
        sys.stdout.flush()
        os._exit(0)


def driver() -> Driver:
    """Return the driver of the peer."""
    return MonarchRDMADriver()
