"""The worker as the child subreaper of its host (see `prctl(2)`).

Orphaned descendants become children of the worker, so the worker can still find them. In a
container, the worker is usually PID 1 and has this role anyway.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress

__all__ = ["Subreaper"]

_PR_SET_CHILD_SUBREAPER = 36
_REAP_INTERVAL_S = 1.0


class Subreaper:
    """Adopts orphaned descendants of this process, and reaps them when they exit."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def start(self) -> None:
        """Become a subreaper and start reaping; if the kernel refuses, init keeps that role."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
        threading.Thread(target=self._watch, name="mesh-subreaper", daemon=True).start()

    def reap(self) -> None:
        """Reap the zombies that the previous call found, and remember those found now.

        Children that this process started are reaped by their starter before the second call.
        """
        zombies = _adopted_zombies()
        for pid in self._seen & zombies:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._seen = zombies - self._seen

    def _watch(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_REAP_INTERVAL_S)
            self.reap()


def _adopted_zombies() -> set[int]:
    """Return the zombie children whose session is not that of this process."""
    own, session = os.getpid(), os.getsid(0)
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                content = file.read()
        except OSError:
            continue
        fields = content[content.rfind(b")") + 2 :].split()
        is_ours = int(fields[1]) == own and int(fields[3]) != session
        if is_ours and fields[0] == b"Z":
            found.add(int(name))
    return found
