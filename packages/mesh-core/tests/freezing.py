"""Stop processes with SIGSTOP, for tests of processes that live and do not answer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mesh_core.testing import wait_until

LIMIT_S = 30.0


def freeze(pid: int) -> None:
    """Stops a process, and returns when the kernel has stopped all of its threads.

    On a busy machine threads run for a while after the signal was sent.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: states_of(pid) <= {"T", "Z"}, LIMIT_S)


def states_of(pid: int) -> set[str]:
    """Returns the state letters of all threads of a process, as in /proc."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            found.add(thread.read_text(encoding="ascii").rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
