"""Many messages to one worker at once: concurrent calls, and one-way messages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from bench.accounting import cpu_ns
from bench.drivers.driver import Driver
from bench.record import Recorder
from bench.scale import Scale


def sync(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Issue everything from one thread, and wait afterwards."""
    driver.start(1)
    worker = driver.pids()[0]
    for i in range(scale.warm_calls):
        driver.call(i)
    _stream("pipelined", driver.pipelined, worker, scale, record)
    _stream("one_way", driver.one_way, worker, scale, record)
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
