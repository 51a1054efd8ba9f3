"""Properties of this machine, its memory copy speed, and the load of other processes."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from bench.accounting import machine_busy_s


class ForeignLoad:
    """Measures the load of other processes while it is open, in cores.

    Children that have exited and were waited for in that time do not count; all runs are such
    children.
    """

    def __enter__(self) -> ForeignLoad:
        self._started = time.monotonic()
        self._busy_s = machine_busy_s()
        self._ours_s = _cpu_of_ended_children_s()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        took = max(time.monotonic() - self._started, 1e-3)
        ours = _cpu_of_ended_children_s() - self._ours_s
        self.cores = max(0.0, (machine_busy_s() - self._busy_s - ours) / took)


def wait_quiet(cores_max: float, wait_s_max: float) -> bool:
    """Wait until other processes use fewer than `cores_max` cores; return whether that happened."""
    until = time.monotonic() + wait_s_max
    while time.monotonic() < until:
        with ForeignLoad() as load:
            time.sleep(0.2)
        if load.cores < cores_max:
            return True
    return False


def description() -> dict[str, str | int | float]:
    """Return the processor, memory and kernel of the machine."""
    fields = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((f.split(":", 1)[1].strip() for f in fields if f.startswith("model name")), "?")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model,
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def memcpy_gb_s() -> dict[str, float]:
    """Measure copies of 64 MB into warm and fresh pages, and of 1 MB in the cache, in GB/s."""
    import numpy as np  # Only this function needs numpy, and only for a table.

    large = np.ones(64 << 20, np.uint8)
    other = np.ones(64 << 20, np.uint8)
    small, near = large[: 1 << 20], other[: 1 << 20]
    return {
        "64MB_warm": _rate(lambda: np.copyto(other, large), large.nbytes, 9),
        "64MB_fresh_pages": _rate(large.copy, large.nbytes, 5),
        "1MB_warm": _rate(lambda: np.copyto(near, small), small.nbytes, 100),
    }


def _rate(copy: Callable[[], object], size: int, reps: int) -> float:
    times = []
    for _ in range(reps):
        started = time.perf_counter()
        copy()
        times.append(time.perf_counter() - started)
    return size / statistics.median(times) / 1e9


def _cpu_of_ended_children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + own.ru_utime + own.ru_stime
