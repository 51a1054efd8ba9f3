"""The lease of a worker, which limits how long it runs while no program uses it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from mesh_jobs._host.process_table import processes

__all__ = ["Lease"]

_LOOK_S = 1.0


class Lease:
    """Lease that ends a worker if no program has used it for some time.

    A program uses the worker as long as the process that serves the program runs. The output of
    that process is not reliable evidence: the process may be killed, and the program may print
    anything.

    Args:
        ttl_s: The time in seconds without a program after which the lease expires.
        end: A function that is called once when the lease expires.
    """

    def __init__(self, ttl_s: float, end: Callable[[], None]) -> None:
        self._ttl_s = ttl_s
        self._end = end
        self._sessions: set[int] = set()
        self.is_over: bool = False

    def start(self) -> None:
        """Start the lease; no program uses the worker at this time."""
        threading.Thread(target=self._watch, name="mesh-lease", daemon=True).start()

    def taken(self, session: int) -> None:
        """Register a program by the process that serves it."""
        self._sessions.add(session)

    def _watch(self) -> None:
        pause = threading.Event()
        unused_since = time.monotonic()
        while True:
            pause.wait(min(_LOOK_S, self._ttl_s / 4))
            now = time.monotonic()
            if self._sessions & _children():
                unused_since = now
            elif now - unused_since >= self._ttl_s:
                self.is_over = True
                self._end()
                return


def _children() -> set[int]:
    return {one.pid for one in processes() if one.parent == os.getpid()}
