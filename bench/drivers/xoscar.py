"""Drives actors of xoscar, whose calls are coroutines.

A program without an event loop runs one for each operation, as `call` does here.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Coroutine
from typing import Any

import xoscar  # type: ignore[import-not-found]

from bench.drivers.driver import Driver, Pending, TwoHosts
from bench.drivers.plain_worker import PlainAsyncWorker, PlainWorker

_ADDRESS = "127.0.0.1"
_PORT = 26600
_JOIN_S_MAX = 60.0


class BlockingWorker(PlainWorker, xoscar.StatelessActor):  # type: ignore[misc]
    """The worker of `bench.drivers.actor_program`, with the names of xoscar."""

    async def call_other(self, other: Any, n: int) -> list[float]:
        times = []
        for i in range(n):
            started = time.perf_counter()
            await other.noop(i)
            times.append(time.perf_counter() - started)
        return times

    async def hang(self, path: str) -> None:  # type: ignore[override]
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, b"x")
        os.close(fd)
        await asyncio.sleep(600)


class AsyncWorker(PlainAsyncWorker, xoscar.StatelessActor):  # type: ignore[misc]
    """The worker whose methods are coroutines."""


class _Task:
    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self._loop, self._task = loop, task

    def get(self, timeout: float | None = None) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(self._task, timeout))


class XoscarDriver(Driver):
    """One actor in each worker process."""

    name = "xoscar"
    kills_per_mesh = 1

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._refs_of: asyncio.AbstractEventLoop | None = None

    def start(self, workers: int, kind: str = "blocking") -> None:
        self._run(self._start(workers, AsyncWorker if kind == "async" else BlockingWorker))

    async def _start(self, workers: int, kind: type) -> None:
        self._pool = await xoscar.create_actor_pool(_ADDRESS, n_process=workers)
        places = [xoscar.allocate_strategy.ProcessIndex(rank + 1) for rank in range(workers)]
        address = self._pool.external_address
        self._workers = [
            await xoscar.create_actor(kind, address=address, allocate_strategy=place)
            for place in places
        ]
        await asyncio.gather(*(one.noop(0) for one in self._workers))

    def serve(self, hosts: TwoHosts) -> None:
        async def pool() -> None:
            served = await xoscar.create_actor_pool(f"{hosts.worker}:{_PORT}", n_process=1)
            await served.join()

        self._run(pool())

    def start_across(self, hosts: TwoHosts) -> None:
        self._run(self._start_across(hosts))

    async def _start_across(self, hosts: TwoHosts) -> None:
        self._pool = await xoscar.create_actor_pool(f"{hosts.program}:{_PORT}", n_process=1)
        place = xoscar.allocate_strategy.ProcessIndex(1)
        until = time.monotonic() + _JOIN_S_MAX
        while True:
            try:
                worker = await xoscar.create_actor(
                    BlockingWorker, address=f"{hosts.worker}:{_PORT}", allocate_strategy=place
                )
                break
            except OSError:  # The other host does not listen yet.
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.2)
        self._workers = [worker]
        await worker.noop(0)

    def stop(self) -> None:
        self._run(self._pool.stop())

    def close_after_kills(self) -> None:
        # The pool waits for processes that were killed.
        sys.stdout.flush()
        os._exit(0)

    def pids(self) -> list[int]:
        return self._run(_all(one.pid() for one in self._workers))

    def call(self, x: int) -> int:
        result: int = self._run(self._workers[0].noop(x))
        return result

    async def call_async(self, x: int) -> int:
        # A reference belongs to an event loop; the first task of the calling event loop creates it.
        loop = asyncio.get_running_loop()
        if self._refs_of is not loop:
            self._refs_of = loop
            first = self._workers[0]
            reference = xoscar.actor_ref(uid=first.uid, address=first.address)
            self._awaited = asyncio.ensure_future(_awaited(reference))
        worker = await self._awaited
        result: int = await worker.noop(x)
        return result

    def call_all(self, x: int) -> list[int]:
        return self._run(_all(one.noop(x) for one in self._workers))

    def pipelined(self, n: int) -> None:
        noop = self._workers[0].noop
        self._run(_all(noop(i) for i in range(n)))

    def one_way(self, n: int) -> None:
        async def tell() -> None:
            noop = self._workers[0].noop
            for i in range(n):
                await noop.tell(i)
            await noop(0)

        self._run(tell())

    def worker_to_worker(self, n: int) -> list[float]:
        times: list[float] = self._run(self._workers[0].call_other(self._workers[1], n))
        return times

    def echo(self, x: Any) -> Any:
        return self._run(self._workers[0].echo(x))

    def cast(self, x: Any, *, read: bool) -> None:
        self._run(_all(one.look(x, read) for one in self._workers))

    def hang(self, rank: int, path: str) -> Pending:
        return self._issued(self._workers[rank].hang, path)

    def fill_memory(self, rank: int) -> Pending:
        return self._issued(self._workers[rank].fill_memory)

    def _issued(self, method: Any, *arguments: Any) -> Pending:
        async def call() -> asyncio.Task[Any]:
            return asyncio.ensure_future(_awaited(method(*arguments)))

        task = self._run(call())
        # The message is sent while the loop runs, so the loop runs until the worker has begun.
        self._run(asyncio.sleep(0.05))
        return _Task(self._loop, task)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)


async def _all(work: Any) -> list[Any]:
    return list(await asyncio.gather(*work))


async def _awaited(work: Any) -> Any:
    return await work


def driver() -> Driver:
    """Return the driver of xoscar."""
    return XoscarDriver()
