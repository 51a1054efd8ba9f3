"""Notifications about hosts that are about to be reclaimed, early enough to save their state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from mesh_jobs._backend.follower import Follower
from mesh_jobs._backend.report import HostDraining
from mesh_jobs._errors import JobError

__all__ = ["LeavingWatch"]

#: The longest time that `stop` waits for a pending wait on the scheduler.
_SLICE_S = 0.25


class LeavingWatch:
    """Watch for hosts that are about to be reclaimed, and call a function once for each of them.

    The watch checks immediately if the scheduler reports a change, and periodically otherwise. It
    ends with `stop`, at the end of a `with` block, or with the program.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[HostDraining]],
        notify: Callable[[HostDraining], object],
        poll_s: float,
        follow: Callable[[], AbstractContextManager[Follower]],
        look_here: Callable[[], Sequence[HostDraining]],
    ) -> None:
        self._look = look
        self._notify = notify
        self._poll_s = poll_s
        self._follow = follow
        self._look_here = look_here
        self._notified: set[tuple[str, int, str, int]] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mesh-leaving", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the watch; a call of the function that is in progress completes first."""
        self._is_over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> LeavingWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._follow() as follower:
                    while not self._is_over.is_set():
                        self._notify_new(self._look())
                        self._wait(follower)
            except JobError:
                # The job is no longer applied, or the scheduler does not respond at the moment.
                self._is_over.wait(self._poll_s)

    def _wait(self, follower: Follower) -> None:
        """Wait until something may have changed, or until the poll interval is over."""
        until = time.monotonic() + self._poll_s
        while not self._is_over.is_set() and (left_s := until - time.monotonic()) > 0:
            if follower.wait(min(left_s, _SLICE_S)) is not False:
                return
            if any(self._is_new(one) for one in self._look_here()):
                return

    def _notify_new(self, leaving: Iterable[HostDraining]) -> None:
        for one in leaving:
            if self._is_new(one):
                self._notified.add((one.mesh, one.rank, one.reason, one.epoch))
                self._notify(one)

    def _is_new(self, one: HostDraining) -> bool:
        """Whether neither this reason nor the end of the worker has been reported for the host."""
        notices = {(one.mesh, one.rank, reason, one.epoch) for reason in (one.reason, "end")}
        return not notices & self._notified
