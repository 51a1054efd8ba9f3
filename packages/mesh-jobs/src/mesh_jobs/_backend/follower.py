"""Waiting for a scheduler: a backend that is told of changes need not ask again and again."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from mesh_jobs._backend.report import Report

__all__ = ["Follower", "Polling"]


class Follower(ABC):
    """An allocation while somebody waits for it to change."""

    @abstractmethod
    def report(self) -> Report:
        """Says how the allocation is, as far as is known here; may be a little behind.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked now.
        """

    @abstractmethod
    def confirmed(self) -> Report:
        """Says how it is from the scheduler's own mouth: called before anything is decided.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked now.
        """

    @abstractmethod
    def wait(self, seconds: float) -> bool | None:
        """Returns when `report` may have something new to say, or so many seconds are over.

        Returns:
            False if only the time is over; whatever else if there may be something new.
        """


class Polling(Follower):
    """Asks anew each time, for schedulers that tell nothing by themselves."""

    def __init__(self, ask: Callable[[], Report]) -> None:
        self._ask = ask
        self._last: Report | None = None

    def report(self) -> Report:
        """Asks the scheduler."""
        self._last = self._ask()
        return self._last

    def confirmed(self) -> Report:
        """Gives what the scheduler said a moment ago."""
        return self._last or self.report()

    def wait(self, seconds: float) -> bool:
        """Lets the time pass."""
        time.sleep(seconds)
        return False
