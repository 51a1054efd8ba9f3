"""What a worker has printed last, for those who ask for it while it runs."""

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
    """One line.

    Attributes:
        number: Counted from 1 since the worker has started.
        at: When it was printed, in seconds since 1970.
        text: Without the line feed.
        is_error: Whether it was printed to standard error.
    """

    number: int
    at: float
    text: str
    is_error: bool


class WorkerLog:
    """The last lines, as many as there is room for; readers never hold up who prints."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lines: deque[PrintedLine] = deque()
        self._len = 0
        self._count = 0
        self._is_over = False
        self._changed = threading.Condition()

    def add(self, text: str, is_error: bool = False) -> None:
        """Keeps a line, and lets go of the oldest where there are too many."""
        with self._changed:
            self._count += 1
            self._lines.append(PrintedLine(self._count, self._clock(), text, is_error))
            self._len += len(text)
            while len(self._lines) > LINES_MAX or self._len > _LEN_MAX:
                self._len -= len(self._lines.popleft().text)
            self._changed.notify_all()

    def last(self, count: int) -> list[PrintedLine]:
        """Gives the last lines, the oldest first."""
        with self._changed:
            return list(self._lines)[-count:] if count else []

    def after(self, number: int, limit_s: float) -> list[PrintedLine] | None:
        """Gives the lines behind that of a number; waits for one if there is none.

        Returns:
            Nothing when none came in that time; None when none will come any more.
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
        """Nothing will be printed any more: those who wait are told."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
