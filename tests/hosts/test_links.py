"""Links break, slow down and lose packets: no message is lost, repeated or reordered.

The program continuously calls every host, and every host calls the next. As long as both ends live,
no call may fail; a fault may only cause delay.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import pytest

from tests.hosts.cluster import Program, WorkerCluster, call_traffic, steps
from tests.hosts.cluster.call_traffic import CallTraffic

#: So long that no fault of these tests is taken for the death of a host.
PATIENT = {"heartbeat_s": 20.0}

#: Allowed in addition to the duration of the fault: a heartbeat to detect it, and slack for a busy
#: machine.
RECOVERY_S = 4.0

_pause = threading.Event()


@contextmanager
def calling(
    cluster: WorkerCluster, program: Program, settings: dict[str, Any] | None = None
) -> Iterator[Callable[[], CallTraffic]]:
    """Keep calls running within the block, and yield a function that ends and checks them."""
    program.do(steps.attach, cluster.addresses(), cluster.keys, settings or {})
    program.do(steps.spawn, 1)
    traffic = program.begin(call_traffic.make_calls)

    def done() -> CallTraffic:
        program.do(call_traffic.stop_calls)
        result = traffic.result(90)
        assert not result.wrong
        assert result.calls >= 2 * 4 * call_traffic.BATCH
        return result

    # The fault of the test must hit calls in progress.
    _pause.wait(0.3)
    yield done


def test_connection_resets_lose_no_message(cluster: WorkerCluster, program: Program) -> None:
    chance = random.Random(1)
    pairs = list(combinations(cluster.world.hosts, 2))
    with calling(cluster, program) as done:
        for _ in range(20):
            cluster.world.faults.reset_once(*chance.choice(pairs))
            _pause.wait(0.1)
        assert done().longest_s < RECOVERY_S


def test_links_that_are_refused_for_a_while_lose_no_message(
    cluster: WorkerCluster, program: Program
) -> None:
    client, w0, w1, *_ = cluster.world.hosts
    with calling(cluster, program) as done:
        with cluster.world.faults.reset(client, w0), cluster.world.faults.reset(w0, w1):
            _pause.wait(1.0)
        assert done().longest_s < 1.0 + RECOVERY_S


def test_lost_packets_lose_no_message(cluster: WorkerCluster, program: Program) -> None:
    with calling(cluster, program, PATIENT) as done:
        with cluster.world.faults.loss(20):
            _pause.wait(4.0)
        done()


def test_partitions_lose_no_message(cluster: WorkerCluster, program: Program) -> None:
    """Each host is cut off for a different time, always less than three heartbeats."""
    spans = (0.1, 0.3, 1.0, 2.0)
    with calling(cluster, program) as done:
        with ThreadPoolExecutor(len(spans)) as threads:
            list(threads.map(partition, [cluster] * 4, range(4), spans))
        assert done().longest_s < max(spans) + RECOVERY_S


@pytest.mark.parametrize("seconds", [10.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_partitions_shorter_than_the_lease_lose_no_message(
    cluster: WorkerCluster, program: Program, seconds: float
) -> None:
    settings = {"heartbeat_s": seconds, "host_lease_s": 3 * seconds}
    with calling(cluster, program, settings) as done:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(partition, [cluster] * 2, (0, 2), (seconds, seconds * 0.7)))
        assert done().longest_s < seconds + RECOVERY_S


def partition(cluster: WorkerCluster, host: int, seconds: float) -> None:
    with cluster.world.faults.partition([cluster.hosts[host]]):
        _pause.wait(seconds)


def test_a_paused_host_loses_no_message(cluster: WorkerCluster, program: Program) -> None:
    with calling(cluster, program) as done:
        with cluster.world.faults.pause(cluster.hosts[1]):
            _pause.wait(1.5)
        assert done().longest_s < 1.5 + RECOVERY_S


def test_high_latency_loses_no_message(cluster: WorkerCluster, program: Program) -> None:
    client, w0, w1, *_ = cluster.world.hosts
    delay = cluster.world.faults.delay
    with (
        delay(client, w0, 0.05, jitter_s=0.01),
        delay(w0, w1, 0.02),
        calling(cluster, program) as done,
    ):
        done()


def test_a_long_message_on_a_slow_link_does_not_cause_a_death(
    cluster: WorkerCluster, program: Program
) -> None:
    """The message takes more than ten heartbeats each way and leaves no bandwidth for others."""
    w0 = cluster.hosts[0]
    program.do(steps.attach, cluster.addresses([w0]), cluster.keys, {"heartbeat_s": 0.25})
    program.do(steps.spawn, 1)
    payload = random.Random(2).randbytes(4 << 20)
    with cluster.world.faults.bandwidth(w0, 10_000_000):
        began = time.monotonic()
        assert program.do(steps.echo, payload) == [payload]
        assert time.monotonic() - began > 10 * 0.25, "the link was not slow enough to tell"
    assert program.do(steps.echo, "x") == ["x"]


def test_a_slow_link_delays_only_its_own_calls(cluster: WorkerCluster, program: Program) -> None:
    w0 = cluster.hosts[0]
    big = random.Random(3).randbytes(1 << 20)
    with (
        cluster.world.faults.bandwidth(w0, 5_000_000),
        calling(cluster, program, PATIENT) as done,
    ):
        slow = program.begin(steps.echo, big, 0)
        for _ in range(5):
            assert program.do(steps.echo, "x", 1) == ["x"]
        assert not slow.done()
        assert slow.result(60) == [big]
        done()


def test_a_partition_of_three_heartbeats_is_a_permanent_death_for_all_hosts(
    cluster: WorkerCluster, program: Program
) -> None:
    program.do(steps.attach, cluster.addresses(), cluster.keys, {"host_lease_s": 3.0})
    where = program.do(steps.spawn, 1)
    w3 = cluster.hosts[3]
    waits = [program.begin(steps.wait_for_ever, 3), program.begin(steps.wait_through, 2, 3)]
    with cluster.world.faults.partition([w3]):
        for wait in waits:
            assert wait.result(60)[0] == "HostDied"
        _pause.wait(1.0)
    # A death report is never revoked.
    _pause.wait(0.5)
    assert program.do(steps.wait_for_ever, 3)[0] == "HostDied"
    assert program.do(steps.ask_outcome, 0, 3)[0] == "HostDied"
    assert program.do(steps.echo_each, [0, 1]) == ["x", "x"]
    # The host has left the job as well, and serves another one.
    with cluster.program() as other:
        other.do(steps.attach, cluster.addresses([w3]), cluster.keys, {})
        ((name, pid),) = other.do(steps.spawn, 1)
        assert (name, pid) not in where
