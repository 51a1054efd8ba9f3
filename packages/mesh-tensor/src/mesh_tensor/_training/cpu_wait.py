"""The time that a process waits for a processor, which distinguishes load from a hang."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["cpu_wait_s"]

_TASKS = "/proc/self/task"
# The position of the time on the run queue, in nanoseconds, in `schedstat`.
_RUN_DELAY = 1
_NS = 1_000_000_000


def cpu_wait_s() -> float:
    """Return how long the threads of this process were ready to run, but did not run.

    This is the sum for all threads that exist; 0 if the kernel does not record it.
    """
    total_ns = 0
    for task in os.listdir(_TASKS):
        with suppress(OSError, IndexError, ValueError):
            total_ns += int(Path(_TASKS, task, "schedstat").read_text().split()[_RUN_DELAY])
    return total_ns / _NS
