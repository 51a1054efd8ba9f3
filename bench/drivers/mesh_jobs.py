"""Drives the command `mesh` and SLURM's own commands, as a user of a cluster does."""

from __future__ import annotations

from bench.drivers.driver import Driver
from bench.slurm.site import Site


class JobsDriver(Driver):
    """Makes a cluster; what is done there the workloads say themselves."""

    name = "mesh_jobs"

    def site(self) -> Site:
        """Makes a cluster with a user's folder."""
        return Site()


def driver() -> Driver:
    """Returns the driver of `mesh_jobs`."""
    return JobsDriver()
