"""Work with an end: what takes longer, or is wanted no more, is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from mesh_telemetry._query.work_threads import Work

__all__ = ["Cancellation", "Cancelled", "Late", "remaining_s", "within"]

T = TypeVar("T")


class Late(Exception):
    """The work had not ended at its deadline."""


class Cancelled(Exception):
    """Nobody wants what the work gives any more."""


class Cancellation:
    """Lets another thread end work: it may be told before, while, or after there is some."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._is_cancelled = False
        self._ends: list[Callable[[], object]] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether the work is to end."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Ends the work. Twice is the same as once."""
        with self._turn:
            self._is_cancelled = True
            ends, self._ends = self._ends, []
        for end in ends:
            end()

    def call(self, end: Callable[[], object]) -> None:
        """Has something called when the work is to end; at once, if it is already."""
        with self._turn:
            if not self._is_cancelled:
                self._ends.append(end)
                return
        end()


def remaining_s(deadline: float) -> float:
    """Says how long it is until a deadline of `time.monotonic()`, in seconds; 0 when it is over."""
    return max(0.0, deadline - time.monotonic())


def within(work: Callable[[], T], deadline: float, cancellation: Cancellation | None = None) -> T:
    """Gives what the work gives, or raises what it raises, if it ends in time.

    Work that does not is stopped.

    Raises:
        Late: It did not end in time.
        Cancelled: It was cancelled.
    """
    results: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
    begun = Work(work, lambda result, error: results.put((result, error)))
    try:
        if cancellation is not None:
            cancellation.call(lambda: results.put((None, Cancelled())))
        result, error = results.get(timeout=remaining_s(deadline))
    except Empty:
        raise Late from None
    finally:
        # Harmless where it has ended.
        begun.stop()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
