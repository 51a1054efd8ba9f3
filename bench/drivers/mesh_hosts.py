"""Drives `mesh_core` over several emulated hosts, which are namespaces of this machine."""

from __future__ import annotations

from bench.drivers.driver import Driver
from bench.hosts.cluster import Cluster


class HostsDriver(Driver):
    """Creates clusters; the workloads define the operations."""

    name = "mesh_hosts"

    def cluster(self, hosts: int, program: str = "bench.hosts.program") -> Cluster:
        """Create a client that runs a module, and hosts with workers."""
        return Cluster(hosts, program)


def driver() -> Driver:
    """Return the driver of `mesh_core` over hosts."""
    return HostsDriver()
