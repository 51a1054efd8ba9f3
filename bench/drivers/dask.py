"""Drives actors of dask.distributed; workers have no nanny, which would double the processes."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from contextlib import suppress
from typing import Any

import dask  # type: ignore[import-not-found]
from distributed import Client, LocalCluster, as_completed  # type: ignore[import-not-found]

from bench.drivers.driver import Driver, Pending, TwoHosts
from bench.drivers.plain_worker import PlainAsyncWorker, PlainWorker

logging.getLogger("distributed").setLevel(logging.CRITICAL)
_READY_S_MAX = 120
_PORT = 8786


class BlockingWorker(PlainWorker):
    """The worker of `bench.drivers.actor_program`, with the names of Dask."""

    def call_other(self, other: Any, n: int) -> list[float]:
        times = []
        for i in range(n):
            started = time.perf_counter()
            other.noop(i).result()
            times.append(time.perf_counter() - started)
        return times


class AsyncWorker(PlainAsyncWorker):
    """The worker whose methods are coroutines."""


def _identity(x: int) -> int:
    return x


class _Future:
    def __init__(self, future: Any) -> None:
        self._future = future

    def get(self, timeout: float | None = None) -> Any:
        return self._future.result(timeout)


class DaskDriver(Driver):
    """One actor in each worker process."""

    name = "dask"
    kills_per_mesh = 4

    def __init__(self) -> None:
        self._cluster: Any = None

    def start(self, workers: int, kind: str = "blocking") -> None:
        if self._cluster is None:
            dask.config.set({"distributed.worker.memory.terminate": False})
            self._cluster = LocalCluster(
                n_workers=0, threads_per_worker=1, processes=True, dashboard_address=None,
                memory_limit=0, silence_logs=logging.CRITICAL,
            )  # fmt: skip
            self._client = Client(self._cluster)
        self._cluster.scale(workers)
        self._start_actors(workers, kind)

    def serve(self, hosts: TwoHosts) -> None:
        scheduler = f"tcp://{hosts.program}:{_PORT}"
        options = ["--no-nanny", "--nthreads=1", "--no-dashboard", f"--host={hosts.worker}"]
        command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, *options]
        os.execv(sys.executable, command)

    def start_across(self, hosts: TwoHosts) -> None:
        self._cluster = LocalCluster(
            n_workers=0, host=hosts.program, scheduler_port=_PORT, dashboard_address=None,
            silence_logs=logging.CRITICAL,
        )  # fmt: skip
        self._client = Client(self._cluster)
        self._start_actors(1, "blocking")

    def _start_actors(self, workers: int, kind: str) -> None:
        """Start an actor in each worker, as soon as the workers have joined."""
        self._client.wait_for_workers(workers, timeout=_READY_S_MAX)
        self._kind = AsyncWorker if kind == "async" else BlockingWorker
        self._addresses = list(self._client.scheduler_info(n_workers=-1)["workers"])[:workers]
        made = [
            self._client.submit(self._kind, actor=True, workers=[address], pure=False)
            for address in self._addresses
        ]
        # Without a reference to the future of its creation, an actor is released.
        self._made = made
        self._workers = [future.result() for future in made]
        self._awaited: Any = None
        for reply in [one.noop(0) for one in self._workers]:
            reply.result()

    def stop(self) -> None:
        self._cluster.scale(0)

    def close(self) -> None:
        self._client.close()
        self._cluster.close()

    def stop_after_kills(self) -> None:
        # A cluster continues to count lost workers, so the next workers get a new cluster.
        with suppress(Exception):
            self.close()
        self._cluster = None

    def close_after_kills(self) -> None:
        sys.stdout.flush()
        os._exit(0)

    def pids(self) -> list[int]:
        return [reply.result() for reply in [one.pid() for one in self._workers]]

    def call(self, x: int) -> int:
        result: int = self._workers[0].noop(x).result()
        return result

    async def call_async(self, x: int) -> int:
        # An asynchronous client belongs to an event loop, so the first task of the calling event
        # loop creates it.
        if self._awaited is None:
            self._awaited = asyncio.ensure_future(self._awaited_worker())
        worker = await self._awaited
        result: int = await worker.noop(x)
        return result

    async def _awaited_worker(self) -> Any:
        self._awaiting = await Client(self._cluster.scheduler_address, asynchronous=True)
        at = [self._addresses[0]]
        self._creation = self._awaiting.submit(self._kind, actor=True, workers=at, pure=False)
        return await self._creation

    def call_all(self, x: int) -> list[int]:
        return [reply.result() for reply in [one.noop(x) for one in self._workers]]

    def pipelined(self, n: int) -> None:
        noop = self._workers[0].noop
        for reply in [noop(i) for i in range(n)]:
            reply.result()

    def one_way(self, n: int) -> None:
        # Dask has no messages without a reply: the replies are ignored.
        noop = self._workers[0].noop
        for i in range(n):
            noop(i)
        noop(0).result()

    def mapped(self, n: int) -> None:
        futures = self._client.map(_identity, range(n), pure=False)
        assert sum(1 for _ in as_completed(futures)) == n

    def worker_to_worker(self, n: int) -> list[float]:
        return list(self._workers[0].call_other(self._workers[1], n).result())

    def echo(self, x: Any) -> Any:
        return self._workers[0].echo(x).result()

    def cast(self, x: Any, *, read: bool) -> None:
        for reply in [one.look(x, read) for one in self._workers]:
            reply.result()

    def hang(self, rank: int, path: str) -> Pending:
        return _Future(self._workers[rank].hang(path))

    def fill_memory(self, rank: int) -> Pending:
        return _Future(self._workers[rank].fill_memory())


def driver() -> Driver:
    """Return the driver of Dask."""
    return DaskDriver()
