"""A directory of the client is mounted on other hosts: each byte leaves the client once."""

from __future__ import annotations

import threading
import time

import pytest

from mesh_core.testing import wait_until
from tests.hosts.cluster import Program, WorkerCluster, mounts, steps
from tests.hosts.world import Host

MIB = 1 << 20

#: Exceeds the duration of everything that does happen, also on a busy machine.
LIMIT_S = 60.0

_pause = threading.Event()


@pytest.fixture
def attached(cluster: WorkerCluster, program: Program) -> Program:
    """A program with all hosts, without cached chunks of an earlier test."""
    for host in cluster.hosts:
        host.run(["rm", "-rf", mounts.CHUNKS])
    program.do(steps.attach, cluster.addresses(), cluster.keys, {"host_lease_s": 3.0})
    return program


def mounted(host: Host) -> list[str]:
    """Return the mounts of Mesh on a host; its mount table starts as a copy of the machine's."""
    lines = host.run(["cat", "/proc/self/mountinfo"]).stdout.splitlines()
    return [line for line in lines if "fuse.mesh" in line and " /tmp/mnt/" in line]


def wait_for_bytes(host: Host, count: int) -> None:
    """Wait until a host has received `count` more bytes."""
    before, until = host.traffic().bytes_in, time.monotonic() + LIMIT_S
    while host.traffic().bytes_in < before + count:
        assert time.monotonic() < until, "nothing comes"
        _pause.wait(0.01)


def test_each_byte_leaves_the_client_once(cluster: WorkerCluster, attached: Program) -> None:
    length = attached.do(mounts.make_project, 1, 60, MIB // 2)
    before = cluster.client.traffic().bytes_out
    attached.do(mounts.open_mount)
    assert attached.do(mounts.wait) == ["True"] * 4
    assert attached.do(mounts.digests, [0, 1, 2, 3]) == [attached.do(mounts.project_digest)] * 4
    assert length <= attached.do(mounts.sent_bytes) < 1.1 * length
    assert cluster.client.traffic().bytes_out - before < 1.5 * length
    attached.do(mounts.close)
    assert [mounted(host) for host in cluster.hosts] == [[]] * 4


def test_an_edit_is_visible_on_all_hosts_and_only_the_edit_is_sent(
    cluster: WorkerCluster, attached: Program
) -> None:
    attached.do(mounts.make_project, 2, 60, MIB // 4)
    attached.do(mounts.open_mount)
    attached.do(mounts.wait)
    before = attached.do(mounts.sent_bytes)
    attached.do(mounts.edit, "part3/file3", b"edited")
    assert attached.do(mounts.refresh)
    assert attached.do(mounts.digests, [0, 1, 2, 3]) == [attached.do(mounts.project_digest)] * 4
    assert attached.do(mounts.sent_bytes) - before < MIB // 4
    attached.do(mounts.close)


@pytest.mark.parametrize("lost", [0, 1], ids=["at the top", "in the middle"])
def test_hosts_below_a_lost_host_get_all_files_from_the_hosts_above_it(
    cluster: WorkerCluster, attached: Program, lost: int
) -> None:
    length = attached.do(mounts.make_project, 3 + lost, 60, MIB // 2)
    left = [host for host in range(4) if host != lost]
    with cluster.world.faults.bandwidth(cluster.client, 100_000_000):
        attached.do(mounts.open_mount)
        waiting = attached.begin(mounts.wait)
        wait_for_bytes(cluster.hosts[lost], length // 8)
        assert not waiting.done()
        with cluster.world.faults.power_cut(cluster.hosts[lost]):
            states = waiting.result(2 * LIMIT_S)
            assert states.pop(lost) == "HostDied"
            assert states == ["True"] * 3
    expected = attached.do(mounts.project_digest)
    assert attached.do(mounts.digests, left) == [expected] * 3
    attached.do(mounts.edit, "part0/file0", b"edited without it")
    assert attached.do(mounts.refresh)
    assert attached.do(mounts.digests, left) == [attached.do(mounts.project_digest)] * 3
    attached.do(mounts.close)
    assert [mounted(cluster.hosts[host]) for host in left] == [[]] * 3


def test_mounts_are_removed_when_the_client_loses_power(
    cluster: WorkerCluster, attached: Program
) -> None:
    attached.do(mounts.make_project, 5, 10, 1000)
    attached.do(mounts.open_mount)
    assert all(mounted(host) for host in cluster.hosts)
    cluster.client.power_cut()
    wait_until(lambda: not any(mounted(host) for host in cluster.hosts), LIMIT_S)
