"""Delivery of signals to a dedicated thread."""

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
    """Call `act` for each of the given signals that this process receives.

    `act` is not called in a signal handler. A handler interrupts arbitrary code of the main thread
    and would wait forever for a lock that the main thread holds, such as the lock of an event that
    it was about to wait for.

    Args:
        numbers: The signals.
        act: Called on a thread, one call at a time.

    Raises:
        ValueError: The caller is not on the main thread.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    # The interpreter writes to this descriptor before any handler runs.
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
