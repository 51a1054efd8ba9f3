"""Detects slow collectives on a host, using only the files of its processes."""

from __future__ import annotations

import logging
import threading
import time

from mesh_telemetry._collectives.collectives_file import read_progress
from mesh_telemetry._events.folders import is_locked
from mesh_telemetry._events.proc_folder import recorded_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["StallMonitor"]

_PERIOD_S = 0.2
_log = logging.getLogger("mesh_telemetry")
_NS = 1_000_000_000


class StallMonitor:
    """Calls a function while collectives are slow, and when processes begin to use collectives.

    Args:
        folder: The folder of the host.
        patience_s: How long a collective may take, in seconds.
        notify: The function.
    """

    def __init__(self, folder: Path, patience_s: float, notify: Callable[[], object]) -> None:
        self._folder = str(folder)
        self._patience_s = patience_s
        self._notify = notify
        self._known: set[str] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mesh-stall-monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; safe to call again."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        has_failed = False
        while not self._is_over.wait(_PERIOD_S):
            try:
                if self.is_stalled():
                    self._notify()
                has_failed = False
            except Exception:
                # A file may be damaged, or this process may temporarily be out of descriptors.
                if not has_failed:
                    _log.exception("mesh: the collectives of a host cannot be observed")
                has_failed = True

    def is_stalled(self) -> bool:
        """Return whether a collective is slow, or a process has begun to use collectives."""
        latest_ns = time.time_ns() - int(self._patience_s * _NS)
        is_stalled = False
        names = recorded_names(self._folder)
        self._known.intersection_update(names)
        for name in names:
            folder = f"{self._folder}/{name}"
            progress = read_progress(folder)
            if progress is None:
                continue
            if name not in self._known:
                self._known.add(name)
                is_stalled = True
            # An operation of a process that was killed never ends.
            is_stalled |= 0 < progress.running_since_ns < latest_ns and is_locked(folder)
        return is_stalled
