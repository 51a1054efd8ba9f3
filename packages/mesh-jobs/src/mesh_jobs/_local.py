"""The machine of the program as its only host: no worker, nothing to wait for."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mesh_jobs._backend import Backend
from mesh_jobs._job import Job
from mesh_jobs._order import Order
from mesh_jobs._report import THIS_HOST, HostReport, Phase, Report, Ticket

__all__ = ["LocalBackend", "LocalJob"]


class LocalJob(Job):
    """A job whose every mesh is the machine where the program runs.

        hosts = LocalJob().state().hosts

    Args:
        hosts: The names of the meshes; each is `this_host()`.
        name: What the job is called.
        context: Under what name it is applied.
        folder: In which folder the state is; the current one when left out.
    """

    def __init__(
        self,
        hosts: Iterable[str] = ("hosts",),
        *,
        name: str = "mesh",
        context: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            dict.fromkeys(hosts, 1), backend="local", name=name, context=context, folder=folder
        )


class LocalBackend(Backend):
    """Gives what is there already."""

    def plan(self, order: Order) -> str:
        """Says that nothing is started."""
        return "".join(f"{mesh.name}: this machine\n" for mesh in order.spec.meshes)

    def allocate(self, order: Order) -> Ticket:
        """Starts nothing."""
        return {"meshes": [mesh.name for mesh in order.spec.meshes]}

    def report(self, ticket: Ticket) -> Report:
        """Says that all is up."""
        hosts = (HostReport(mesh, 0, Phase.RUNNING, THIS_HOST) for mesh in ticket["meshes"])
        return Report(Phase.RUNNING, hosts=tuple(hosts))

    def release(self, ticket: Ticket) -> None:
        """Ends nothing: what the program has started on its own machine ends with it."""
