"""Drives actors of Ray, with its defaults for a program on one machine."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray  # type: ignore[import-not-found]
from ray.util import ActorPool  # type: ignore[import-not-found]

from bench.drivers.driver import Driver, Pending, TwoHosts
from bench.drivers.plain_worker import PlainAsyncWorker, PlainWorker

#: Large enough for the payloads of all workloads at the same time.
_STORE_BYTES = 2 << 30
_PORT = 6379
_START = (sys.executable, "-m", "ray.scripts.scripts", "start")


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
class BlockingWorker(PlainWorker):
    """The worker of `bench.drivers.actor_program`, with the names of Ray."""

    def call_other(self, other: Any, n: int) -> list[float]:
        times = []
        for i in range(n):
            started = time.perf_counter()
            ray.get(other.noop.remote(i))
            times.append(time.perf_counter() - started)
        return times


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
class AsyncWorker(PlainAsyncWorker):
    """The worker whose methods are coroutines."""


class _Reference:
    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def get(self, timeout: float | None = None) -> Any:
        return ray.get(self._reference, timeout=timeout)


class RayDriver(Driver):
    """One actor in each worker process."""

    name = "ray"

    def start(self, workers: int, kind: str = "blocking") -> None:
        if not ray.is_initialized():
            ray.init(
                num_cpus=os.cpu_count(),
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                object_store_memory=_STORE_BYTES,
            )
        worker = AsyncWorker if kind == "async" else BlockingWorker
        self._workers = [worker.remote() for _ in range(workers)]
        ray.get([one.noop.remote(0) for one in self._workers])
        self._noop = self._workers[0].noop

    def serve(self, hosts: TwoHosts) -> None:
        head = f"{hosts.program}:{_PORT}"
        command = [*_START, f"--address={head}", f"--node-ip-address={hosts.worker}", "--block"]
        while True:  # The head may not have started yet.
            subprocess.run(command, check=False)
            time.sleep(0.5)

    def start_across(self, hosts: TwoHosts) -> None:
        head = [f"--port={_PORT}", f"--node-ip-address={hosts.program}"]
        options = [*head, "--head", "--include-dashboard=false"]
        subprocess.run([*_START, *options], stdout=subprocess.DEVNULL, check=True)
        ray.init(
            address=f"{hosts.program}:{_PORT}", logging_level=logging.ERROR, log_to_driver=False
        )
        # Every node has a resource that is named after its address.
        place = BlockingWorker.options(resources={f"node:{hosts.worker}": 0.01})
        self._workers = [place.remote()]
        ray.get(self._workers[0].noop.remote(0))

    def stop(self) -> None:
        for one in self._workers:
            ray.kill(one)

    def close(self) -> None:
        ray.shutdown()

    def pids(self) -> list[int]:
        return list(ray.get([one.pid.remote() for one in self._workers]))

    def call(self, x: int) -> int:
        result: int = ray.get(self._noop.remote(x))
        return result

    async def call_async(self, x: int) -> int:
        result: int = await self._noop.remote(x)
        return result

    def call_all(self, x: int) -> list[int]:
        return list(ray.get([one.noop.remote(x) for one in self._workers]))

    def pipelined(self, n: int) -> None:
        noop = self._noop
        ray.get([noop.remote(i) for i in range(n)])

    def one_way(self, n: int) -> None:
        noop = self._noop
        for i in range(n):
            noop.remote(i)
        ray.get(noop.remote(0))

    def mapped(self, n: int) -> None:
        pool = ActorPool(self._workers)
        taken = sum(1 for _ in pool.map_unordered(lambda one, i: one.noop.remote(i), range(n)))
        assert taken == n

    def worker_to_worker(self, n: int) -> list[float]:
        return list(ray.get(self._workers[0].call_other.remote(self._workers[1], n)))

    def echo(self, x: Any) -> Any:
        return ray.get(self._workers[0].echo.remote(x))

    def cast(self, x: Any, *, read: bool) -> None:
        stored = ray.put(x)
        ray.get([one.look.remote(stored, read) for one in self._workers])

    def hang(self, rank: int, path: str) -> Pending:
        return _Reference(self._workers[rank].hang.remote(path))

    def fill_memory(self, rank: int) -> Pending:
        return _Reference(self._workers[rank].fill_memory.remote())


def driver() -> Driver:
    """Return the driver of Ray."""
    return RayDriver()
