"""The interface that a scheduler backend implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from mesh_jobs._backend.attachment import Attachment
from mesh_jobs._backend.follower import Follower, Polling
from mesh_jobs._backend.order import Order
from mesh_jobs._backend.report import HostDraining, JobEvent, Report, Ticket
from mesh_jobs._errors import NotSupported
from mesh_jobs._spec import JobSpec

__all__ = ["Backend"]


class Backend(ABC):
    """Interface to one kind of scheduler, which allocates and releases hosts.

    A backend keeps no state in memory, because each method may be called in a different process.
    The ticket contains, as plain values, everything that is needed to find an allocation again.

    Attributes:
        options: The options from the job's spec.
        poll_s: The longest interval in seconds between two polls while a program waits.
        runs_clients: Whether the backend runs the client script of a job next to the workers.

    Args:
        options: The options from the job's spec.
    """

    poll_s: ClassVar[float] = 1.0
    runs_clients: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options: Mapping[str, Any] = options

    @abstractmethod
    def plan(self, order: Order) -> str:
        """Return what `allocate` would submit, as human-readable text; has no side effects."""

    def attachment(self, spec: JobSpec) -> Attachment | None:
        """Return the existing hosts that a spec refers to; None if the spec requests new hosts.

        For such a spec, `allocate` only returns a ticket that identifies the hosts, and `release`
        does not release them.

        Raises:
            JobPending: The hosts do not exist yet.
            SchedulerUnreachable: The scheduler does not respond.
            JobError: No such hosts exist.
        """
        return None

    @abstractmethod
    def allocate(self, order: Order) -> Ticket:
        """Submit the order, and return without waiting for hosts.

        A second call with the same `order.id` must not submit anything twice, because the program
        may have died before it stored the ticket. It returns the ticket of the existing submission.

        Raises:
            SchedulerUnreachable: The scheduler does not respond.
            JobError: The scheduler rejects the order.
        """

    @abstractmethod
    def report(self, ticket: Ticket) -> Report:
        """Report the current state of an allocation, without waiting.

        Raises:
            SchedulerUnreachable: The scheduler does not respond. This does not mean that anything
                has ended.
        """

    @contextmanager
    def follow(self, ticket: Ticket) -> Iterator[Follower]:
        """Follow an allocation while a program waits for it to change.

        The default implementation polls `report`, at intervals of at most `poll_s`.
        """
        yield Polling(lambda: self.report(ticket))

    @abstractmethod
    def release(self, ticket: Ticket) -> None:
        """Release everything, including pending requests; returns when nothing runs anymore.

        Raises:
            SchedulerUnreachable: The scheduler does not respond; the allocation may still exist.
        """

    def find(self, order: Order) -> Ticket | None:
        """Return the ticket of what `allocate` has submitted for an order; None if nothing.

        This is used to release what was left by a program that died before it received its ticket.
        The default implementation calls `allocate` once more, and the result is released.

        Raises:
            SchedulerUnreachable: The scheduler does not respond.
        """
        return self.allocate(order)

    def resize(self, ticket: Ticket, order: Order) -> Ticket:
        """Resize an allocation to the order, and return its new ticket.

        A second call with the same order resumes an interrupted resize.

        Raises:
            NotSupported: The scheduler does not support this resize.
            SchedulerUnreachable: The scheduler does not respond.
        """
        raise NotSupported(
            f"backend {order.spec.backend!r} cannot resize: kill the job, and apply it again"
        )

    def logs(self, ticket: Ticket, mesh: str, rank: int, lines: int) -> str:
        """Return the last lines of output of a host's worker.

        Raises:
            NotSupported: The backend does not store this output.
        """
        raise NotSupported("this backend keeps no output of workers: see the scheduler's logs")

    def client_output(self, ticket: Ticket, start: int) -> bytes:
        """Return the output of the client script from an offset on, possibly truncated.

        Args:
            ticket: The ticket of the allocation.
            start: The offset of the first byte; a negative one counts from the end.

        Raises:
            NotSupported: The backend does not store this output.
            SchedulerUnreachable: The output cannot be read at the moment.
        """
        raise NotSupported("this backend keeps no output of client scripts")

    def events(self, ticket: Ticket) -> Sequence[JobEvent]:
        """Return the events that the scheduler reports for an allocation, oldest first."""
        return ()

    def leaving(self, ticket: Ticket) -> Sequence[HostDraining]:
        """Return the hosts that are about to be reclaimed, if the scheduler announces this.

        Raises:
            SchedulerUnreachable: The scheduler does not respond.
        """
        return ()

    def gateway(self, ticket: Ticket) -> str | None:
        """Return the address of a worker that forwards connections to the others, if needed."""
        return None

    def control_gateway(self, ticket: Ticket) -> str | None:
        """Return the address of the gateway's control service, if one is needed."""
        return None
