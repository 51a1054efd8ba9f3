"""One worker calls another, one call at a time, measured inside the caller."""

from __future__ import annotations

from bench.drivers.driver import Driver
from bench.record import Recorder
from bench.scale import Scale


def sync(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Measure plain endpoints; the caller waits in `.get()`."""
    driver.start(2)
    driver.worker_to_worker(scale.warm_calls)
    for _ in range(scale.blocks):
        record.times("", driver.worker_to_worker(scale.block_calls), "us")
    driver.stop()
