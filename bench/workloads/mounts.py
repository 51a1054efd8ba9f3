"""A directory of the client on separate hosts, and the traffic on its link."""

from __future__ import annotations

from bench.drivers.mesh_hosts import HostsDriver
from bench.record import Recorder
from bench.scale import QUICK, Scale
from bench.trees import MIB

HOSTS = 4
_PROGRAM = "bench.hosts.mounts"


def across(driver: HostsDriver, scale: Scale, record: Recorder) -> None:
    """Mount a tree on four hosts that all read all of it; edit it; mount it again."""
    with driver.cluster(HOSTS, _PROGRAM) as cluster:
        cluster.attach(cluster.hosts)
        tree = cluster.program.do("make", scale is QUICK)

        def link() -> int:
            return cluster.client.traffic().bytes_out

        before = link()
        opened = cluster.program.do("open")
        record.value("cold", opened + cluster.program.do("read_all"), "s")
        record.value("tree", tree / MIB, "MiB")
        record.value("link", (link() - before) / MIB, "MiB")
        before = link()
        record.value("edit", cluster.program.do("edit"), "s")
        record.value("edit_kib", (link() - before) / 1024, "KiB")
        cluster.program.do("close")
        before = link()
        record.value("second", cluster.program.do("open"), "s")
        record.value("second_kib", (link() - before) / 1024, "KiB")
        cluster.program.do("read_all")
        cluster.program.do("close")
