"""Work with an end: what takes longer is left to itself."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Late", "remaining_s", "within"]

T = TypeVar("T")


class Late(Exception):
    """The work had not ended at its deadline."""


def remaining_s(deadline: float) -> float:
    """Says how long it is until a deadline of `time.monotonic()`, in seconds; 0 when it is over."""
    return max(0.0, deadline - time.monotonic())


def within(work: Callable[[], T], deadline: float) -> T:
    """Gives what the work gives, or raises what it raises, if it ends in time.

    A thread of the engine's cannot be stopped from outside; one that is late is abandoned, and
    ends by itself at the next batch.

    Raises:
        Late: It did not end in time.
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.put((context.run(work), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, name="mesh-telemetry-query", daemon=True).start()
    try:
        result, error = results.get(timeout=remaining_s(deadline))
    except queue.Empty:
        raise Late from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
