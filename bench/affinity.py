"""CPU affinity of whole processes."""

from __future__ import annotations

import os


def pin_process(cores: list[int]) -> None:
    """Restrict every thread of this process, and all that it starts later, to some cores."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            # The thread has exited.
            continue
