"""What a scheduler has to offer, and nothing more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from mesh_jobs._backend.attachment import Attachment
from mesh_jobs._backend.follower import Follower, Polling
from mesh_jobs._backend.order import Order
from mesh_jobs._backend.report import HostLeaving, JobEvent, Report, Ticket
from mesh_jobs._errors import NotSupported
from mesh_jobs._spec import JobSpec

__all__ = ["Backend"]


class Backend(ABC):
    """Gets hosts from one kind of scheduler, and gives them back.

    It keeps nothing in memory: each method may be called in another process than the one before.
    What it needs to find an allocation again is in the ticket, as plain values.

    Attributes:
        options: What the job's spec tells it.
        poll_s: The longest time between two looks at the hosts while somebody waits.
        runs_clients: Whether it runs the client script of a job beside the workers.

    Args:
        options: The same.
    """

    poll_s: ClassVar[float] = 1.0
    runs_clients: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options: Mapping[str, Any] = options

    @abstractmethod
    def plan(self, order: Order) -> str:
        """Gives what `allocate` would submit, as text for people; touches nothing."""

    def attachment(self, spec: JobSpec) -> Attachment | None:
        """Gives the hosts of somebody else, where a spec asks for these and for none of its own.

        `allocate` then only gives the ticket with which they are found, and `release` leaves them.

        Raises:
            JobPending: They are not there yet.
            SchedulerUnreachable: The scheduler cannot be asked.
            JobError: There are none.
        """
        return None

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

    @contextmanager
    def follow(self, ticket: Ticket) -> Iterator[Follower]:
        """Looks at an allocation for as long as somebody waits for it to change.

        Without it `report` is called again and again, each `poll_s` at the latest.
        """
        yield Polling(lambda: self.report(ticket))

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

    def client_output(self, ticket: Ticket, start: int) -> bytes:
        """Gives what the client script has printed, from a byte on, or some of it.

        Args:
            ticket: That of the allocation.
            start: The first byte; counted from the end when negative.

        Raises:
            NotSupported: It is not kept.
            SchedulerUnreachable: It cannot be read now.
        """
        raise NotSupported("this backend keeps no output of client scripts")

    def events(self, ticket: Ticket) -> Sequence[JobEvent]:
        """Gives what the scheduler tells of an allocation, oldest first."""
        return ()

    def leaving(self, ticket: Ticket) -> Sequence[HostLeaving]:
        """Gives the hosts that the scheduler is about to take, as far as it says so before.

        Raises:
            SchedulerUnreachable: It cannot be asked.
        """
        return ()

    def gateway(self, ticket: Ticket) -> str | None:
        """Gives the address of a worker that passes on to the others, where one is needed."""
        return None

    def control_gateway(self, ticket: Ticket) -> str | None:
        """Gives where the control service of the gateway listens, where one is needed."""
        return None
