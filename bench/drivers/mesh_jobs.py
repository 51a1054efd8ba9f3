"""Drives the `mesh` command and SLURM's own commands like a user of a cluster."""

from __future__ import annotations

from bench.drivers.driver import Driver
from bench.slurm.site import Site


class JobsDriver(Driver):
    """Creates a cluster; the workloads define the operations."""

    name = "mesh_jobs"

    def site(self) -> Site:
        """Create a cluster with a user's folder."""
        return Site()


def driver() -> Driver:
    """Return the driver of `mesh_jobs`."""
    return JobsDriver()
