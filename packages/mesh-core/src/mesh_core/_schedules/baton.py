"""Threads that run one at a time: each runs only while the scheduler waits for it."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Abandoned", "BatonThread", "baton_thread"]


# A function that catches every exception and waits again is left behind after this many attempts.
_TRIES_MAX = 100
_JOIN_S = 0.01


class Abandoned(BaseException):
    """Ends the code of an actor that waits when its run is over."""


class BatonThread(threading.Thread):
    """A thread that runs functions one after another, each when the scheduler permits it.

    Attributes:
        is_waiting: Whether the running function has called `wait` and was not resumed yet.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.is_waiting: bool = False
        self._function: Callable[[], object] | None = None
        self._is_abandoned = False
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self.start()

    def begin(self, function: Callable[[], object]) -> None:
        """Run a function until it returns or waits."""
        self._function = function
        self._hand_over()

    def resume(self) -> None:
        """Continue the function that waits, until it returns or waits again."""
        self._hand_over()

    def wait(self) -> None:
        """Return to the scheduler, and continue when it resumes this thread.

        Raises:
            Abandoned: The run is over.
        """
        self.is_waiting = True
        self._back.release()
        self._go.acquire()
        self.is_waiting = False
        if self._is_abandoned:
            raise Abandoned

    def abandon(self) -> None:
        """End the thread; a function that waits ends with `Abandoned`."""
        self._is_abandoned = True
        for _ in range(_TRIES_MAX):
            # A function may wait again while it ends.
            self._go.release()
            self.join(_JOIN_S)
            if not self.is_alive():
                return

    def run(self) -> None:
        """Run functions until the thread is abandoned."""
        while True:
            self._go.acquire()
            if self._is_abandoned:
                return
            function, self._function = self._function, None
            assert function is not None
            try:
                function()
            except Abandoned:
                return
            self._back.release()

    def _hand_over(self) -> None:
        self._go.release()
        self._back.acquire()


def baton_thread() -> BatonThread | None:
    """Return the current thread if the scheduler runs it."""
    current = threading.current_thread()
    return current if isinstance(current, BatonThread) else None
