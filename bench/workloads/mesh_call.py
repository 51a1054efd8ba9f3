"""One call to every worker of a mesh, with replies from all of them."""

from __future__ import annotations

import os
import time

from bench.accounting import cpu_ns_of, descendants
from bench.drivers.driver import Driver
from bench.record import Recorder
from bench.scale import Scale


def sync(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Wait for all replies before the next call."""
    procs = scale.procs
    driver.start(procs)
    for i in range(10):
        driver.call_all(i)
    everyone = [os.getpid(), *descendants(os.getpid())]
    for _ in range(scale.blocks):
        times: list[float] = []
        until = time.perf_counter() + scale.block_s_max / 2
        cpu = cpu_ns_of(everyone)
        while len(times) < 100 and time.perf_counter() < until:
            i = len(times)
            started = time.perf_counter()
            answers = driver.call_all(i)
            times.append(time.perf_counter() - started)
            assert answers == [i] * procs
        spent_us = (cpu_ns_of(everyone) - cpu) / 1e3 / len(times) / procs
        record.times("per_actor_", [t / procs for t in times], "us")
        record.value("cpu_per_actor", spent_us, "us", procs=procs)
    driver.stop()
