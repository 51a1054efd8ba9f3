"""What a scheduler has to offer, and nothing more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mesh_jobs._errors import NotSupported
from mesh_jobs._order import Order
from mesh_jobs._report import JobEvent, Report, Ticket

__all__ = ["Backend"]


class Backend(ABC):
    """Gets hosts from one kind of scheduler, and gives them back.

    It keeps nothing in memory: each method may be called in another process than the one before.
    What it needs to find an allocation again is in the ticket, as plain values.

    Attributes:
        options: What the job's spec tells it.
        poll_s: The longest time between two calls of `report` while somebody waits.

    Args:
        options: The same.
    """

    poll_s: ClassVar[float] = 1.0

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options: Mapping[str, Any] = options

    @abstractmethod
    def plan(self, order: Order) -> str:
        """Gives what `allocate` would submit, as text for people; touches nothing."""

    @abstractmethod
    def allocate(self, order: Order) -> Ticket:
        """Submits, and returns without waiting for hosts.

        Called again with the same `order.id` it submits nothing twice: the program may have died
        before it could note the ticket. Such a call gives the ticket of what is there.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked.
            JobError: It refuses the order.
        """

    @abstractmethod
    def report(self, ticket: Ticket) -> Report:
        """Says how an allocation is now, without waiting.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked: this is no end of anything.
        """

    @abstractmethod
    def release(self, ticket: Ticket) -> None:
        """Gives all back, also what is still pending; returns when nothing runs any more.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked: the allocation may still be there.
        """

    def find(self, order: Order) -> Ticket | None:
        """Gives the ticket of what `allocate` has begun for an order; None when that is nothing.

        Used to give back what a program left that died before it had its ticket. Without it,
        `allocate` is called once more, and what it gives is released.

        Raises:
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        return self.allocate(order)

    def resize(self, ticket: Ticket, order: Order) -> Ticket:
        """Brings an allocation to the size of the order, and gives its ticket from then on.

        Called again with the same order it goes on where it was.

        Raises:
            NotSupported: This scheduler cannot.
            SchedulerUnreachable: The scheduler cannot be asked.
        """
        raise NotSupported(
            f"backend {order.spec.backend!r} cannot resize: kill the job, and apply it anew"
        )

    def logs(self, ticket: Ticket, mesh: str, rank: int, lines: int) -> str:
        """Gives the last lines that the worker of a host printed.

        Raises:
            NotSupported: They are not kept.
        """
        raise NotSupported("this backend keeps no output of workers: look at the scheduler's logs")

    def events(self, ticket: Ticket) -> Sequence[JobEvent]:
        """Gives what the scheduler tells of an allocation, oldest first."""
        return ()

    def gateway(self, ticket: Ticket) -> str | None:
        """Gives the address of a worker that passes on to the others, where one is needed."""
        return None
