"""Notifications about hosts that are about to be reclaimed, early enough to save their state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from mesh_jobs._backend.follower import Follower
from mesh_jobs._backend.report import HostDraining
from mesh_jobs._errors import JobError, SchedulerUnreachable

__all__ = ["LeavingWatch"]

#: The longest time that `stop` waits for a pending wait on the scheduler.
_SLICE_S = 0.25


class LeavingWatch:
    """Watch for hosts that are about to be reclaimed, and call a function once for each of them.

    A notice comes from the scheduler, from a watch of it, or from the worker itself, which also
    works while the scheduler does not respond. The watch checks immediately if the scheduler or a
    worker reports a change, and periodically otherwise. It ends with `stop`, at the end of a `with`
    block, or with the program.

    Args:
        look: A function that queries the scheduler for the hosts that are about to be reclaimed.
        notify: A function that is called with each of them.
        poll_s: The poll interval in seconds.
        follow: A function that returns a follower of the allocation.
        look_here: A function that returns the hosts whose workers report that they shut down.
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
        #: The reasons that were reported, for each worker.
        self._notified: dict[tuple[str, int, int], set[str]] = {}
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
                        self._check(follower)
                        self._wait(follower)
            except JobError:
                # The job is no longer applied, or the scheduler does not respond at the moment.
                self._wait_without_scheduler()

    def _check(self, follower: Follower) -> None:
        # The watch is read first: if the program itself has released the job since, the query
        # fails, and the deletion of its hosts is not reported as an eviction.
        seen = follower.leaving()
        try:
            found = self._look()
        except SchedulerUnreachable:
            self._notify_new(seen)
            raise
        self._notify_new([*seen, *found])

    def _wait(self, follower: Follower) -> None:
        """Wait until something may have changed, or until the poll interval is over."""
        until = time.monotonic() + self._poll_s
        while not self._is_over.is_set() and (left_s := until - time.monotonic()) > 0:
            if follower.wait(min(left_s, _SLICE_S)) is not False:
                return
            # The scheduler knows the reason, so it is queried before a worker's notice is reported.
            if any(map(self._is_new, self._found_here())):
                return

    def _wait_without_scheduler(self) -> None:
        """Report the notices of workers until the poll interval is over."""
        until = time.monotonic() + self._poll_s
        while not self._is_over.is_set() and (left_s := until - time.monotonic()) > 0:
            self._notify_new(self._found_here())
            self._is_over.wait(min(left_s, _SLICE_S))

    def _found_here(self) -> Sequence[HostDraining]:
        try:
            return self._look_here()
        except JobError:
            return ()  # The job is no longer applied.

    def _notify_new(self, leaving: Iterable[HostDraining]) -> None:
        for one in leaving:
            if self._is_new(one):
                worker = (one.mesh, one.rank, one.epoch)
                self._notified.setdefault(worker, set()).add(one.reason)
                self._notify(one)

    def _is_new(self, one: HostDraining) -> bool:
        """Return whether a notice is the first for its worker.

        The time limit of the job and an eviction are different notices. The end of a worker without
        a reason follows from either, so it is reported only without one.
        """
        known = self._notified.get((one.mesh, one.rank, one.epoch), set())
        if one.reason == "timeout":
            return not known & {"timeout", "end"}
        return not known - {"timeout"} if one.reason != "end" else not known
