"""Work with a deadline, which is stopped when the deadline passes or when it is cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from mesh_telemetry._query.work_threads import Work

__all__ = ["Cancellation", "Cancelled", "DeadlineExceeded", "remaining_s", "within"]

T = TypeVar("T")


class DeadlineExceeded(Exception):
    """Raised if work did not end by its deadline."""


class Cancelled(Exception):
    """Raised if work was cancelled."""


class Cancellation:
    """Lets another thread stop work.

    It may be cancelled before the work begins, while it runs, or after it has ended.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._is_cancelled = False
        self._ends: list[Callable[[], object]] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether the work was cancelled."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Stop the work; later calls do nothing."""
        with self._turn:
            self._is_cancelled = True
            ends, self._ends = self._ends, []
        for end in ends:
            end()

    def call(self, end: Callable[[], object]) -> None:
        """Register a callback for cancellation; it is called at once if already cancelled."""
        with self._turn:
            if not self._is_cancelled:
                self._ends.append(end)
                return
        end()


def remaining_s(deadline: float) -> float:
    """Return the seconds until a deadline of `time.monotonic()`; 0 if it has passed."""
    return max(0.0, deadline - time.monotonic())


def within(work: Callable[[], T], deadline: float, cancellation: Cancellation | None = None) -> T:
    """Run work in another thread until a deadline, and return its result or raise its exception.

    Work that does not end in time is stopped.

    Raises:
        DeadlineExceeded: The work did not end in time.
        Cancelled: The work was cancelled.
    """
    results: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
    begun = Work(work, lambda result, error: results.put((result, error)))
    try:
        if cancellation is not None:
            cancellation.call(lambda: results.put((None, Cancelled())))
        result, error = results.get(timeout=remaining_s(deadline))
    except Empty:
        raise DeadlineExceeded from None
    finally:
        # Has no effect if the work has ended.
        begun.stop()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
