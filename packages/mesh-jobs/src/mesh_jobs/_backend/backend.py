"""The interface that a scheduler backend implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._backend.attachment import Attachment
from mesh_jobs._backend.follower import Follower, Polling
from mesh_jobs._backend.report import Allocation, HostDraining, JobEvent, Report
from mesh_jobs._errors import NotSupported
from mesh_jobs._spec import JobSpec

__all__ = ["Backend"]


class Backend(ABC):
    """Interface to one kind of scheduler, which allocates and releases hosts.

    A backend keeps no state in memory, because each method may be called in a different process.
    An `Allocation` contains, as plain values, everything that is needed to find it again.

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
    def plan(self, request: AllocationRequest) -> str:
        """Return what `allocate` would submit, as human-readable text; has no side effects."""

    def attachment(self, spec: JobSpec) -> Attachment | None:
        """Return the existing hosts that a spec refers to; None if the spec requests new hosts.

        For such a spec, `allocate` only returns an allocation that identifies the hosts, and
        `release` does not release them.

        Raises:
            JobPending: The hosts do not exist yet.
            SchedulerUnreachable: The scheduler does not respond.
            JobError: No such hosts exist.
        """
        return None

    @abstractmethod
    def allocate(self, request: AllocationRequest) -> Allocation:
        """Submit the request, and return without waiting for hosts.

        A second call with the same `request.id` must not submit anything twice, because the program
        may have died before it stored the result. It returns the existing allocation.

        Raises:
            SchedulerUnreachable: The scheduler does not respond.
            JobError: The scheduler rejects the request.
        """

    @abstractmethod
    def report(self, allocation: Allocation) -> Report:
        """Report the current state of an allocation, without waiting.

        Raises:
            SchedulerUnreachable: The scheduler does not respond. This does not mean that anything
                has ended.
        """

    @contextmanager
    def follow(self, allocation: Allocation) -> Iterator[Follower]:
        """Follow an allocation while a program waits for it to change.

        The default implementation polls `report`, at intervals of at most `poll_s`.
        """
        yield Polling(lambda: self.report(allocation))

    @abstractmethod
    def release(self, allocation: Allocation) -> None:
        """Release everything, including pending requests; returns when nothing runs anymore.

        Raises:
            SchedulerUnreachable: The scheduler does not respond; the allocation may still exist.
        """

    def find(self, request: AllocationRequest) -> Allocation | None:
        """Return the allocation of a request, if `allocate` has submitted it; otherwise None.

        This is used to release the hosts of a program that died before it received its allocation.
        The default implementation calls `allocate` once more, and the result is released.

        Raises:
            SchedulerUnreachable: The scheduler does not respond.
        """
        return self.allocate(request)

    def resize(self, allocation: Allocation, request: AllocationRequest) -> Allocation:
        """Resize an allocation to the request, and return the new one.

        A second call with the same request resumes an interrupted resize.

        Raises:
            NotSupported: The scheduler does not support this resize.
            SchedulerUnreachable: The scheduler does not respond.
        """
        raise NotSupported(
            f"backend {request.spec.backend!r} cannot resize: kill the job, and apply it again"
        )

    def logs(self, allocation: Allocation, mesh: str, rank: int, lines: int) -> str:
        """Return the last lines of output of a host's worker.

        Raises:
            NotSupported: The backend does not store this output.
        """
        raise NotSupported("this backend keeps no output of workers: see the scheduler's logs")

    def client_output(self, allocation: Allocation, start: int) -> bytes:
        """Return the output of the client script from an offset on, possibly truncated.

        Args:
            allocation: The allocation.
            start: The offset of the first byte; a negative one counts from the end.

        Raises:
            NotSupported: The backend does not store this output.
            SchedulerUnreachable: The output cannot be read at the moment.
        """
        raise NotSupported("this backend keeps no output of client scripts")

    def events(self, allocation: Allocation) -> Sequence[JobEvent]:
        """Return the events that the scheduler reports for an allocation, oldest first."""
        return ()

    def leaving(self, allocation: Allocation) -> Sequence[HostDraining]:
        """Return the hosts that are about to be reclaimed, if the scheduler announces this.

        Raises:
            SchedulerUnreachable: The scheduler does not respond.
        """
        return ()

    def gateway(self, allocation: Allocation) -> str | None:
        """Return the address of a worker that forwards connections to the others, if needed."""
        return None

    def control_gateway(self, allocation: Allocation) -> str | None:
        """Return the address of the gateway's control service, if one is needed."""
        return None
