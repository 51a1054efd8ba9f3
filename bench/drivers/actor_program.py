"""The benchmark program, written once for all frameworks with this API.

Mesh and its peer have the same public names, so both use the same workers and calls below;
`drivers.mesh` and `drivers.monarch` differ in their imports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.drivers.driver import Driver, Pending, TwoHosts


@dataclass(frozen=True)
class ActorApi:
    """The names through which a framework is driven."""

    this_host: Callable[[], Any]
    shutdown_context: Callable[[], Any]
    blocking_worker: type
    async_worker: type


def blocking_worker(actor: type, endpoint: Callable[[Any], Any], module: str) -> type:
    """Define the worker whose endpoints are plain functions.

    Args:
        actor: The base class of the framework.
        endpoint: The decorator of the framework.
        module: The module that will contain the class, so that it is pickled by reference.
    """

    class BlockingWorker(actor):  # type: ignore[misc]
        @endpoint
        def noop(self, x: int) -> int:
            return x

        @endpoint
        def pid(self) -> int:
            return os.getpid()

        @endpoint
        def echo(self, x: Any) -> Any:
            return x

        @endpoint
        def look(self, x: Any, read: bool) -> int:
            if read:
                return int(x.max())
            return int(x[0]) + int(x[-1])

        @endpoint
        def scribble(self, x: Any) -> int:
            x[0] = 255
            return int(x[0])

        @endpoint
        def call_other(self, other: Any, n: int) -> list[float]:
            noop = other.noop
            times = []
            for i in range(n):
                started = time.perf_counter()
                noop.call_one(i).get()
                times.append(time.perf_counter() - started)
            return times

        @endpoint
        def hang(self, path: str) -> None:
            fd = os.open(path, os.O_WRONLY)
            os.write(fd, b"x")
            os.close(fd)
            time.sleep(600)

        @endpoint
        def fill_memory(self) -> None:
            kept = []
            while True:
                kept.append(bytearray(b"x") * (32 << 20))

    return _importable(BlockingWorker, "BlockingWorker", module)


def async_worker(actor: type, endpoint: Callable[[Any], Any], module: str) -> type:
    """Define the worker whose endpoints are coroutines (arguments as in `blocking_worker`)."""

    class AsyncWorker(actor):  # type: ignore[misc]
        @endpoint
        async def noop(self, x: int) -> int:
            return x

        @endpoint
        async def pid(self) -> int:
            return os.getpid()

    return _importable(AsyncWorker, "AsyncWorker", module)


def _importable(worker: type, name: str, module: str) -> type:
    worker.__module__ = module
    worker.__qualname__ = name
    return worker


class ActorDriver(Driver):
    """Drives a framework through `spawn_procs`, `spawn`, `call_one`, `call` and `broadcast`."""

    def __init__(self, name: str, api: ActorApi) -> None:
        self.name = name
        self._api = api

    def start(self, workers: int, kind: str = "blocking") -> None:
        worker = self._api.async_worker if kind == "async" else self._api.blocking_worker
        self._start_on(self._api.this_host(), workers, worker)

    def start_across(self, hosts: TwoHosts) -> None:
        self._start_on(self._attached(hosts).slice(hosts=0), 1, self._api.blocking_worker)

    def _attached(self, hosts: TwoHosts) -> Any:
        """Return the mesh with the host of the worker."""
        raise self._not_offered("start_across")

    def _start_on(self, host: Any, workers: int, worker: type) -> None:
        self._procs = host.spawn_procs(per_host={"gpus": workers})
        self._mesh = self._procs.spawn("w", worker)
        self._mesh.noop.call(0).get()
        self._one = [self._mesh.slice(gpus=rank) for rank in range(workers)]
        self._noop = self._one[0].noop

    def stop(self) -> None:
        self._procs.stop().get()

    def close(self) -> None:
        self._api.shutdown_context().get()

    def pids(self) -> list[int]:
        return list(self._mesh.pid.call().get().values())

    def call(self, x: int) -> int:
        result: int = self._noop.call_one(x).get()
        return result

    async def call_async(self, x: int) -> int:
        result: int = await self._noop.call_one(x)
        return result

    def call_all(self, x: int) -> list[int]:
        return list(self._mesh.noop.call(x).get().values())

    def pipelined(self, n: int) -> None:
        noop = self._noop
        pending = [noop.call_one(i) for i in range(n)]
        for call in pending:
            call.get()

    def one_way(self, n: int) -> None:
        noop = self._noop
        for i in range(n):
            noop.broadcast(i)
        noop.call_one(0).get()

    def worker_to_worker(self, n: int) -> list[float]:
        times: list[float] = self._one[0].call_other.call_one(self._one[1], n).get()
        return times

    def echo(self, x: Any) -> Any:
        return self._one[0].echo.call_one(x).get()

    def scribble(self, x: Any) -> int:
        result: int = self._one[0].scribble.call_one(x).get()
        return result

    def cast(self, x: Any, *, read: bool) -> None:
        self._mesh.look.call(x, read).get()

    def hang(self, rank: int, path: str) -> Pending:
        pending: Pending = self._one[rank].hang.call_one(path)
        return pending

    def fill_memory(self, rank: int) -> Pending:
        pending: Pending = self._one[rank].fill_memory.call_one()
        return pending
