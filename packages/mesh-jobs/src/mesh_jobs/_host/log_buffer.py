"""A ring buffer of the worker's most recent output, which clients read while the worker runs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["PrintedLine", "WorkerLog"]

LINES_MAX = 10_000
_LEN_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """A line of output.

    Attributes:
        number: The number of the line, counted from 1 since the worker started.
        at: When the line was printed, in seconds since 1970.
        text: The line without its line feed.
        is_error: Whether it was printed to standard error.
    """

    number: int
    at: float
    text: str
    is_error: bool


class WorkerLog:
    """A buffer of the last lines, bounded in lines and length; readers do not block the writer."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lines: deque[PrintedLine] = deque()
        self._len = 0
        self._count = 0
        self._is_over = False
        self._changed = threading.Condition()

    def add(self, text: str, is_error: bool = False) -> None:
        """Append a line, and drop the oldest lines while the buffer exceeds its limits."""
        with self._changed:
            self._count += 1
            self._lines.append(PrintedLine(self._count, self._clock(), text, is_error))
            self._len += len(text)
            while len(self._lines) > LINES_MAX or self._len > _LEN_MAX:
                self._len -= len(self._lines.popleft().text)
            self._changed.notify_all()

    def last(self, count: int) -> list[PrintedLine]:
        """Return the last lines, the oldest first."""
        with self._changed:
            return list(self._lines)[-count:] if count else []

    def after(self, number: int, limit_s: float) -> list[PrintedLine] | None:
        """Return the lines after the given number; wait for one if there is none.

        Returns:
            An empty list if no line arrived within the limit; None if the buffer is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._count > number or self._is_over, limit_s)
            if self._count > number:
                first = self._count - len(self._lines)
                return list(self._lines)[max(number - first, 0) :]
            return None if self._is_over else []

    @property
    def count(self) -> int:
        """The number of the last line."""
        with self._changed:
            return self._count

    def close(self) -> None:
        """Close the buffer and wake all waiting readers; no more lines will be added."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
