"""Drives `mesh_core` over several hosts, which are namespaces of this machine."""

from __future__ import annotations

from bench.drivers.driver import Driver
from bench.hosts.cluster import Cluster


class HostsDriver(Driver):
    """Makes clusters; what is done there the workloads say themselves."""

    name = "mesh_hosts"

    def cluster(self, hosts: int, program: str = "bench.hosts.program") -> Cluster:
        """Makes a client, on which a module runs, and hosts with workers."""
        return Cluster(hosts, program)


def driver() -> Driver:
    """Returns the driver of `mesh_core` over hosts."""
    return HostsDriver()
