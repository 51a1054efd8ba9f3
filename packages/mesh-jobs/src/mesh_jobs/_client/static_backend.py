"""A backend for running workers with known addresses, used by client scripts of a job."""

from __future__ import annotations

from collections.abc import Iterable

from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.order import Order
from mesh_jobs._backend.report import HostReport, Phase, Report, Ticket
from mesh_jobs._errors import NotSupported

__all__ = ["FixedBackend", "fixed_ticket"]


def fixed_ticket(hosts: Iterable[HostReport]) -> Ticket:
    """Return a ticket for hosts that are up."""
    return {"hosts": [[host.mesh, host.rank, host.address] for host in hosts]}


class FixedBackend(Backend):
    """A backend that allocates and releases nothing; the creator of the workers terminates them."""

    def plan(self, order: Order) -> str:
        """Return a note that nothing is started."""
        return "nothing is started: the workers are already running\n"

    def allocate(self, order: Order) -> Ticket:
        """Reject the order, because this backend cannot allocate hosts.

        Raises:
            NotSupported: Always.
        """
        raise NotSupported("the hosts of this job are fixed: use a job of your own for other hosts")

    def report(self, ticket: Ticket) -> Report:
        """Report all hosts as up; a lost host is detected when it is used."""
        hosts = (HostReport(mesh, rank, Phase.RUNNING, at) for mesh, rank, at in ticket["hosts"])
        return Report(Phase.RUNNING, "", tuple(hosts))

    def release(self, ticket: Ticket) -> None:
        """Do nothing; the creator of the workers terminates them."""
