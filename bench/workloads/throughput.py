"""Many messages to one worker at once: concurrent calls, and one-way messages."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from bench.accounting import cpu_ns
from bench.drivers.driver import Driver
from bench.record import Recorder
from bench.scale import Scale

#: Number of tasks that call at the same time.
_TASKS = 100
#: Number of workers of a map.
_MAPPERS = 4


def sync(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Issue everything from one thread, and wait afterwards."""
    driver.start(1)
    worker = driver.pids()[0]
    for i in range(scale.warm_calls):
        driver.call(i)
    _stream("pipelined", driver.pipelined, worker, scale, record)
    _stream("one_way", driver.one_way, worker, scale, record)
    driver.stop()


def concurrent(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Await calls from many tasks of one event loop; the worker's endpoint is a coroutine."""
    driver.start(1, "async")
    worker = driver.pids()[0]

    async def call_repeatedly(count: int) -> None:
        for i in range(count):
            await driver.call_async(i)

    async def call(n: int) -> None:
        await asyncio.gather(*(call_repeatedly(n // _TASKS) for _ in range(_TASKS)))

    with asyncio.Runner() as runner:
        _stream("concurrent", lambda n: runner.run(call(n)), worker, scale, record)
    driver.stop()


def mapped(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Map items over a few workers."""
    driver.start(_MAPPERS)
    _stream("mapped", driver.mapped, driver.pids()[0], scale, record)
    driver.stop()


def _stream(
    name: str, send: Callable[[int], None], worker: int, scale: Scale, record: Recorder
) -> None:
    n = scale.stream_len
    send(n // 100)
    until = time.perf_counter() + scale.block_s_max
    for _ in range(scale.blocks):
        cpu = cpu_ns(os.getpid()), cpu_ns(worker)
        started = time.perf_counter()
        send(n)
        ended = time.perf_counter()
        client = (cpu_ns(os.getpid()) - cpu[0]) / n / 1e3
        there = (cpu_ns(worker) - cpu[1]) / n / 1e3
        rate = n / (ended - started)
        record.value(name, rate, "/s", n=n, cpu_client_us=client, cpu_worker_us=there)
        if ended > until:
            break
