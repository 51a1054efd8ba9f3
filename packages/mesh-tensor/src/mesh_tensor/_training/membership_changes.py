"""Processes that should join or leave a training at one of its next steps."""

from __future__ import annotations

import threading
from concurrent.futures import Future as Completion
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core import Future
    from mesh_tensor._training.members import Member

__all__ = ["MembershipChange", "MembershipChanges"]


@dataclass(eq=False)
class MembershipChange:
    """Processes that join or leave.

    Attributes:
        joining: The processes that join.
        leaving: The processes that leave.
        places: The first replies of the actors of the joining processes.
        done: Done when the change has taken effect.
    """

    joining: Sequence[Member] = ()
    leaving: Sequence[Member] = ()
    places: Sequence[Future[tuple[int, str]]] = ()
    done: Completion[None] = field(default_factory=Completion)

    def is_due(self) -> bool:
        """Return whether training need not wait for processes that join."""
        return all(place.done() for place in self.places)


class MembershipChanges:
    """The changes that have been requested and have not taken effect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[MembershipChange] = []

    def request(self, change: MembershipChange) -> Completion[None]:
        """Request a change; the result is done when it has taken effect."""
        with self._lock:
            self._pending.append(change)
        return change.done

    def are_due(self) -> bool:
        """Return whether some change can take effect."""
        with self._lock:
            return any(change.is_due() for change in self._pending)

    def take(self) -> list[MembershipChange]:
        """Remove and return the changes that can take effect.

        A change whose processes could not start is dropped, and its `done` gets the error.
        """
        with self._lock:
            due = [change for change in self._pending if change.is_due()]
            self._pending = [change for change in self._pending if change not in due]
        started = []
        for change in due:
            errors = [error for place in change.places if (error := place.exception())]
            if not change.done.set_running_or_notify_cancel():
                continue
            if errors:
                change.done.set_exception(errors[0])
            else:
                started.append(change)
        return started

    def give_up(self, error: Exception) -> None:
        """Let all requested changes fail."""
        with self._lock:
            pending, self._pending = self._pending, []
        for change in pending:
            if change.done.set_running_or_notify_cancel():
                change.done.set_exception(error)
