"""Processes that do not answer, though they live."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mesh_core.testing import wait_until

__all__ = ["freeze"]


def freeze(pid: int) -> None:
    """Stops a process; returns when none of its threads does anything any more."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _states_of(pid) == {"T"})


def _states_of(pid: int) -> set[str]:
    """Gives the letters of the states that its threads are in."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            line = (thread / "stat").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            # It has ended meanwhile.
            continue
        states.add(line.rsplit(") ", 1)[1][0])
    return states
