"""Processes that are alive but do not respond."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mesh_core.testing import wait_until

__all__ = ["freeze"]


def freeze(pid: int) -> None:
    """Stop a process; return when all of its threads are stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _states_of(pid) == {"T"})


def _states_of(pid: int) -> set[str]:
    """Return the state letters of the threads of a process."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            line = (thread / "stat").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            # The thread has ended since the directory was listed.
            continue
        states.add(line.rsplit(") ", 1)[1][0])
    return states
