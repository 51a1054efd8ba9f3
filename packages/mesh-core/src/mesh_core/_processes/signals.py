"""Hearing signals in a thread of its own."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

__all__ = ["on_signals"]

_READ_BYTES = 64


@contextmanager
def on_signals(numbers: Collection[int], act: Callable[[], object]) -> Iterator[None]:
    """Calls back for each signal of some kinds that this process gets.

    Not in a handler: that runs amid whatever the main thread does, and would wait for ever for a
    lock that the main thread has there, such as that of an event it was about to wait for.

    Args:
        numbers: The signals.
        act: Called in a thread, one call at a time.

    Raises:
        ValueError: This is not the main thread.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    # What the interpreter writes there, it writes before any handler runs.
    wakeup_before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}

    def hear() -> None:
        while told_now := os.read(heard, _READ_BYTES):
            for number in told_now:
                if number in before:
                    act()
        os.close(heard)

    threading.Thread(target=hear, name="mesh-signals", daemon=True).start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)
        os.close(told)
