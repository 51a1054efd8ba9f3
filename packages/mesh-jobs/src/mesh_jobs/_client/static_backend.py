"""A backend for running workers with known addresses, used by client scripts of a job."""

from __future__ import annotations

from collections.abc import Iterable

from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.report import Allocation, HostReport, Phase, Report
from mesh_jobs._errors import NotSupported

__all__ = ["FixedBackend", "fixed_allocation"]


def fixed_allocation(hosts: Iterable[HostReport]) -> Allocation:
    """Return an allocation of hosts that are up."""
    return {"hosts": [[host.mesh, host.rank, host.address] for host in hosts]}


class FixedBackend(Backend):
    """A backend that allocates and releases nothing; the creator of the workers terminates them."""

    def plan(self, request: AllocationRequest) -> str:
        """Return a note that nothing is started."""
        return "nothing is started: the workers are already running\n"

    def allocate(self, request: AllocationRequest) -> Allocation:
        """Reject the request, because this backend cannot allocate hosts.

        Raises:
            NotSupported: Always.
        """
        raise NotSupported("the hosts of this job are fixed: use a job of your own for other hosts")

    def report(self, allocation: Allocation) -> Report:
        """Report all hosts as up; a lost host is detected when it is used."""
        hosts = (
            HostReport(mesh, rank, Phase.RUNNING, at) for mesh, rank, at in allocation["hosts"]
        )
        return Report(Phase.RUNNING, "", tuple(hosts))

    def release(self, allocation: Allocation) -> None:
        """Do nothing; the creator of the workers terminates them."""
