"""How work that runs beside its caller ends, and who is told."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core.spi import Completion

__all__ = ["ThreadedCompletion", "wait_for_each"]


class ThreadedCompletion:
    """What each `mesh_core.spi.Completion` here has; those that derive say how it ends."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def wait(self, timeout: float | None) -> bool:
        """Waits; says whether it has ended."""
        return self._done.wait(timeout)

    def is_done(self) -> bool:
        """Says whether it has ended."""
        return self._done.is_set()

    def outcome(self) -> Any:
        """Raises what it ended with."""
        if self._error is not None:
            raise self._error

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls back once it has ended."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def _settle(self, error: BaseException | None) -> None:
        """Ends it, unless it has ended, and tells those who wait."""
        with self._lock:
            if self._done.is_set():
                return
            self._error = error
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


def wait_for_each(
    parts: Sequence[Completion[None]], done: threading.Event, timeout: float | None
) -> bool:
    """Waits for parts, and then for `done`; says whether that is set in time."""
    until = None if timeout is None else time.monotonic() + timeout
    for part in parts:
        # A part that is waited for may be done by whoever waits.
        left = None if until is None else max(until - time.monotonic(), 0.0)
        if not part.wait(left):
            return False
    return done.wait(None if until is None else max(until - time.monotonic(), 0.0))
