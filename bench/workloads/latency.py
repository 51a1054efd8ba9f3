"""One call at a time to one worker: its duration, and the CPU time of both sides."""

from __future__ import annotations

import asyncio
import os
import time

from bench.accounting import cpu_ns, cpu_ns_of, descendants
from bench.drivers.driver import Driver
from bench.record import Recorder
from bench.scale import Scale


class _CpuMeter:
    """CPU time of the client, the worker, and all other processes of the framework."""

    def __init__(self, worker: int) -> None:
        self._client = os.getpid()
        self._worker = worker
        self._others = [pid for pid in descendants(self._client) if pid != worker]
        self._before = self._read()

    def _read(self) -> tuple[int, int, int]:
        return cpu_ns(self._client), cpu_ns(self._worker), cpu_ns_of(self._others)

    def record(self, record: Recorder, calls: int) -> None:
        client, worker, others = (
            (after - before) / calls / 1e3
            for before, after in zip(self._before, self._read(), strict=True)
        )
        record.value("cpu", client + worker, "us", client=client, worker=worker, others=others)


def sync(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Call from a plain thread that waits for each reply."""
    driver.start(1)
    worker = driver.pids()[0]
    call = driver.call
    clock = time.perf_counter
    for i in range(scale.warm_calls):
        call(i)
    for _ in range(scale.blocks):
        meter = _CpuMeter(worker)
        times: list[float] = []
        until = clock() + scale.block_s_max
        for i in range(scale.block_calls):
            started = clock()
            answer = call(i)
            ended = clock()
            times.append(ended - started)
            assert answer == i
            if ended > until:
                break
        meter.record(record, len(times))
        record.times("", times, "us")
    driver.stop()


def async_client(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Call from an event loop that awaits each reply; the worker's endpoint is a coroutine."""
    driver.start(1, "async")
    worker = driver.pids()[0]
    asyncio.run(_await_calls(driver, worker, scale, record))
    driver.stop()


async def _await_calls(driver: Driver, worker: int, scale: Scale, record: Recorder) -> None:
    call = driver.call_async
    clock = time.perf_counter
    for i in range(scale.warm_calls):
        await call(i)
    for _ in range(scale.blocks):
        meter = _CpuMeter(worker)
        times: list[float] = []
        until = clock() + scale.block_s_max
        for i in range(scale.block_calls):
            started = clock()
            answer = await call(i)
            ended = clock()
            times.append(ended - started)
            assert answer == i
            if ended > until:
                break
        meter.record(record, len(times))
        record.times("", times, "us")
