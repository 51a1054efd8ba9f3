"""Casts, gathers and failures across hosts."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from bench.accounting import cpu_ns_of, descendants
from bench.drivers.mesh_hosts import HostsDriver
from bench.hosts.cluster import Cluster, RemoteProgram
from bench.record import Recorder
from bench.scale import Scale
from tests.hosts.world import Traffic

CAST_HOSTS, CAST_PROCS = 4, 4
GATHER_HOSTS, GATHER_PROCS = 8, 8
_GBIT = 1_000_000_000
_CAST_LEN = 100_000_000
_KILL_PAUSE_S = 0.02


def cast(driver: HostsDriver, scale: Scale, record: Recorder) -> None:
    """Cast an array to all processes, and send as much over one TLS connection, in turn."""
    length = _CAST_LEN if scale.casts > 2 else _CAST_LEN // 10
    with driver.cluster(CAST_HOSTS) as cluster:
        cluster.attach(cluster.hosts)
        cluster.program.do("spawn", CAST_PROCS, CAST_HOSTS)
        first = cluster.hosts[0]
        receiver = RemoteProgram(
            first, "bench.hosts.stream", "serve", str(cluster.folder / first.name)
        )
        receiver.receive()
        sender = RemoteProgram(cluster.client, "bench.hosts.stream", first.name)
        for name, bits_per_s in (("unshaped", None), ("1gbit", _GBIT)):
            with ExitStack() as shaped:
                for host in cluster.world if bits_per_s else ():
                    shaped.enter_context(cluster.world.faults.bandwidth(host, bits_per_s))
                # The first transfers fill pools and open TCP windows.
                cluster.program.do("cast", length)
                sender.do("send", length)
                for _ in range(scale.casts):
                    _cast_once(cluster, sender, name, length, record)


def _cast_once(
    cluster: Cluster, sender: RemoteProgram, name: str, length: int, record: Recorder
) -> None:
    before = [host.traffic() for host in cluster.world]
    took = cluster.program.do("cast", length)
    links = [host.traffic() - earlier for host, earlier in zip(cluster.world, before, strict=True)]
    record.value(f"cast_{name}", took, "s", bytes=length)
    record.value(f"link_{name}", max(map(_busier, links)) / length, "x", links=_shown(links))
    record.value(f"stream_{name}", sender.do("send", length), "s", bytes=length)


def _busier(link: Traffic) -> int:
    return max(link.bytes_in, link.bytes_out)


def _shown(links: list[Traffic]) -> list[tuple[int, int]]:
    return [(link.bytes_in, link.bytes_out) for link in links]


def gather(driver: HostsDriver, scale: Scale, record: Recorder) -> None:
    """Call a no-op on eight processes of one host, and on eight of each of eight hosts."""
    with driver.cluster(GATHER_HOSTS) as cluster:
        cluster.attach(cluster.hosts)
        for hosts in (1, GATHER_HOSTS):
            cluster.program.do("spawn", GATHER_PROCS, hosts)
            cluster.program.do("noops", scale.warm_calls // 10)
            for _ in range(scale.blocks):
                everyone = descendants(os.getpid())
                before = cpu_ns_of(everyone)
                times = cluster.program.do("noops", scale.block_calls // 4)
                record.times(f"{hosts}_", times, "us")
                used_us = (cpu_ns_of(everyone) - before) / 1e3
                # If it is close to the duration of a call times the cores, the cores are the
                # bottleneck.
                record.value(f"{hosts}_cpu", used_us / len(times), "us")
            cluster.program.do("stop")


def kill(driver: HostsDriver, scale: Scale, record: Recorder) -> None:
    """Kill processes of another host, each during a call to it."""
    with driver.cluster(2) as cluster:
        cluster.attach(cluster.hosts)
        times: list[float] = []
        while len(times) < scale.kills // 2:
            cluster.program.do("spawn", 8, 2)
            times += cluster.program.do("kills", _KILL_PAUSE_S)
            cluster.program.do("stop")
        record.times("detect_", times, "ms")


def power_cut(driver: HostsDriver, scale: Scale, record: Recorder) -> None:
    """Cut the power of each host in turn, during a call to it."""
    hosts = 4
    with driver.cluster(hosts) as cluster:
        cluster.attach(cluster.hosts)
        cluster.program.do("spawn", 1, hosts)
        for rank in reversed(range(1, hosts)):
            cluster.program.do("lose", rank)
            started = time.monotonic()
            cluster.world.faults.power_cut(cluster.hosts[rank])
            record.value("host_died", cluster.program.receive() - started, "s")
