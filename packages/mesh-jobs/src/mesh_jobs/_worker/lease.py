"""How long a worker stays without a program: nothing outlives its owner's intent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from mesh_jobs._host.process_table import processes

__all__ = ["Lease"]

_LOOK_S = 1.0


class Lease:
    """Ends a worker that no program has used for a while.

    A program is there as long as the process runs that serves it. What that process prints is not
    asked: it may be killed, or its output be a program's own.

    Args:
        ttl_s: How long it stays unused.
        end: What to do then, once.
    """

    def __init__(self, ttl_s: float, end: Callable[[], None]) -> None:
        self._ttl_s = ttl_s
        self._end = end
        self._sessions: set[int] = set()
        self.is_over: bool = False

    def start(self) -> None:
        """Begins to watch; nobody uses the worker now."""
        threading.Thread(target=self._watch, name="mesh-lease", daemon=True).start()

    def taken(self, session: int) -> None:
        """A program has come, which is served by that process."""
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
