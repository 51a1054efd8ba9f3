"""Followers, which wait for changes of an allocation by notification or by polling."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from mesh_jobs._backend.report import HostDraining, Report

__all__ = ["Follower", "Polling"]


class Follower(ABC):
    """Follower of an allocation, used while a program waits for it to change."""

    @abstractmethod
    def report(self) -> Report:
        """Return the state of the allocation as known locally; it may be slightly out of date.

        Raises:
            SchedulerUnreachable: The scheduler does not respond at the moment.
        """

    @abstractmethod
    def confirmed(self) -> Report:
        """Return the state as confirmed by the scheduler; called before anything is decided.

        Raises:
            SchedulerUnreachable: The scheduler does not respond at the moment.
        """

    @abstractmethod
    def wait(self, seconds: float) -> bool | None:
        """Wait until `report` may have changed, or for the given number of seconds.

        Returns:
            False if only the time has passed; any other value if there may be a change.
        """

    def leaving(self) -> Sequence[HostDraining]:
        """Return the eviction notices since the last call that a query may no longer show."""
        return ()


class Polling(Follower):
    """A follower for schedulers without notifications, which queries the scheduler each time."""

    def __init__(self, ask: Callable[[], Report]) -> None:
        self._ask = ask
        self._last: Report | None = None

    def report(self) -> Report:
        """Query the scheduler."""
        self._last = self._ask()
        return self._last

    def confirmed(self) -> Report:
        """Return the last response of the scheduler."""
        return self._last or self.report()

    def wait(self, seconds: float) -> bool:
        """Sleep for the given number of seconds."""
        time.sleep(seconds)
        return False
