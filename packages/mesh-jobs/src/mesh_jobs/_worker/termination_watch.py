"""Hearing at once that this process is told to end, whoever handles that."""

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
    """Calls `on_termination` on a thread of its own when a signal comes that somebody handles.

    Raises:
        ValueError: This is not the main thread.
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
