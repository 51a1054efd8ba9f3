"""The time until all processes have replied, the memory of an idle one, and the time to stop."""

from __future__ import annotations

import os
import statistics
import time

from bench.accounting import descendants, pss_kib, wait_ended
from bench.drivers.driver import Driver
from bench.record import Recorder
from bench.scale import Scale


def sync(driver: Driver, scale: Scale, record: Recorder) -> None:
    """Include the startup of the framework, but not its import in the client."""
    procs = scale.procs
    started = time.perf_counter()
    driver.start(procs)
    record.value("ready", time.perf_counter() - started, "s", procs=procs)
    pids = driver.pids()
    assert len(set(pids)) == procs, f"{procs} workers in {len(set(pids))} processes"
    each = [pss_kib(pid) / 1024 for pid in pids]
    record.value("pss", statistics.median(each), "MiB", procs=procs, pss_max=max(each))
    everyone = [os.getpid(), *descendants(os.getpid())]
    record.value(
        "pss_total", sum(map(_pss_while_alive, everyone)) / 1024, "MiB", procs=len(everyone)
    )
    started = time.perf_counter()
    driver.stop()
    left = wait_ended(pids, timeout_s=60.0)
    record.value("tear_down", time.perf_counter() - started, "s", procs=procs, left=left)


def _pss_while_alive(pid: int) -> int:
    # A process that helped to start the workers may have exited since it was listed.
    try:
        return pss_kib(pid)
    except OSError:
        return 0
