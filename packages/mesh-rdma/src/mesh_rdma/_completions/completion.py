"""The completion of work that runs in another thread than its caller."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core.spi import Completion

__all__ = ["ThreadedCompletion", "wait_for_each"]


class ThreadedCompletion:
    """A `mesh_core.spi.Completion` without `cancel`, which subclasses add; it settles once."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def wait(self, timeout: float | None) -> bool:
        """Wait until it has settled; return whether it has."""
        return self._done.wait(timeout)

    def is_done(self) -> bool:
        """Return whether it has settled."""
        return self._done.is_set()

    def outcome(self) -> Any:
        """Raise the error that it settled with, if any."""
        if self._error is not None:
            raise self._error

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once it has settled, or immediately if it already has."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def _settle(self, error: BaseException | None) -> None:
        """Settle it unless it has settled, and notify waiters and callbacks."""
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
    """Wait for all parts and then for `done`; return whether `done` is set in time."""
    until = None if timeout is None else time.monotonic() + timeout
    for part in parts:
        # The waiting thread may itself run the part.
        left = None if until is None else max(until - time.monotonic(), 0.0)
        if not part.wait(left):
            return False
    return done.wait(None if until is None else max(until - time.monotonic(), 0.0))
