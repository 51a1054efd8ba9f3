"""A watch for termination signals that works alongside any signal handler."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["watch_termination"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def watch_termination(on_termination: Callable[[], object]) -> Iterator[None]:
    """Call a function in another thread when SIGTERM or SIGINT is received.

    The watch uses the wakeup file descriptor, so a Python handler must be installed for the signal.

    Raises:
        ValueError: The caller is not the main thread.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    waiting = threading.Thread(target=_wait, args=(reading, on_termination), daemon=True)
    waiting.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        waiting.join()
        os.close(reading)


def _wait(reading: int, on_termination: Callable[[], object]) -> None:
    while numbers := os.read(reading, 64):
        if any(number in _SIGNALS for number in numbers):
            on_termination()
            return
