"""Workers that run already, under addresses that are known: how a client script sees its job."""

from __future__ import annotations

from collections.abc import Iterable

from mesh_jobs._backend.backend import Backend
from mesh_jobs._backend.order import Order
from mesh_jobs._backend.report import HostReport, Phase, Report, Ticket
from mesh_jobs._errors import NotSupported

__all__ = ["FixedBackend", "fixed_ticket"]


def fixed_ticket(hosts: Iterable[HostReport]) -> Ticket:
    """Gives the ticket of hosts that are up."""
    return {"hosts": [[host.mesh, host.rank, host.address] for host in hosts]}


class FixedBackend(Backend):
    """Allocates nothing and releases nothing: whoever has started the workers ends them."""

    def plan(self, order: Order) -> str:
        """Says that nothing is started."""
        return "nothing is started: the workers run already\n"

    def allocate(self, order: Order) -> Ticket:
        """Refuses: there is nothing to get hosts from.

        Raises:
            NotSupported: Always.
        """
        raise NotSupported("these hosts were given: get others with a job of your own")

    def report(self, ticket: Ticket) -> Report:
        """Says that all are up; that one is lost is seen where it is used."""
        hosts = (HostReport(mesh, rank, Phase.RUNNING, at) for mesh, rank, at in ticket["hosts"])
        return Report(Phase.RUNNING, "", tuple(hosts))

    def release(self, ticket: Ticket) -> None:
        """Leaves the workers to who has started them."""
