"""A pool of forked processes of the standard library: the floor of a map over workers."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from bench.drivers.driver import Driver


def _noop(x: int) -> int:
    return x


class ProcessPoolDriver(Driver):
    """Sends each item separately, as a map over actors does."""

    name = "floor_process_pool"

    def start(self, workers: int, kind: str = "blocking") -> None:
        self._pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"))
        self._pool.submit(_noop, 0).result()

    def stop(self) -> None:
        self._pool.shutdown()

    def pids(self) -> list[int]:
        return [self._pool.submit(os.getpid).result()]

    def mapped(self, n: int) -> None:
        taken = sum(1 for _ in self._pool.map(_noop, range(n)))
        assert taken == n


def driver() -> Driver:
    """Return the driver of this floor."""
    return ProcessPoolDriver()
