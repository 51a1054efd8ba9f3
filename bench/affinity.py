"""Keeping all of a process on some cores."""

from __future__ import annotations

import os


def pin_process(cores: list[int]) -> None:
    """Keeps every thread of this process, and all that it will start, on some cores."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            # It ended meanwhile.
            continue
