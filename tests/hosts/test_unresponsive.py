"""Mesh waits, within limits, for hosts that are up and whose processes do not respond."""

from __future__ import annotations

import threading
import time

from tests.hosts.busy import spinning
from tests.hosts.cluster import Program, WorkerCluster, call_traffic, steps

HEARTBEAT_S = 0.1
#: Simulates a machine with a load of ten per CPU on two CPUs.
SPINNERS = 20
LIMIT_S = 60.0

_pause = threading.Event()


def test_host_that_is_paused_for_many_heartbeats_is_not_dead(
    cluster: WorkerCluster, program: Program
) -> None:
    program.do(steps.attach, cluster.addresses(), cluster.keys, {"heartbeat_s": HEARTBEAT_S})
    program.do(steps.spawn, 1)
    with cluster.world.faults.pause(cluster.hosts[1]):
        answers = program.begin(steps.echo, "x")
        _pause.wait(30 * HEARTBEAT_S)
        assert not answers.done()
        assert program.do(steps.echo_each, [0, 2]) == ["x"] * 2
    assert answers.result(LIMIT_S) == ["x"] * len(cluster.hosts)
    assert program.do(steps.program_told) == []


def test_host_that_is_paused_for_too_long_is_dead_for_good(
    cluster: WorkerCluster, program: Program
) -> None:
    patience_s = 2.0
    settings = {"heartbeat_s": HEARTBEAT_S, "unresponsive_timeout_s": patience_s}
    program.do(steps.attach, cluster.addresses(), cluster.keys, settings)
    program.do(steps.spawn, 1)
    waiting = program.begin(steps.wait_for_ever, 1)
    program.do(steps.settle, 3 * HEARTBEAT_S)
    paused = time.monotonic()
    with cluster.world.faults.pause(cluster.hosts[1]):
        assert waiting.result(LIMIT_S)[0] == "HostDied"
        assert time.monotonic() - paused > patience_s - HEARTBEAT_S
    assert program.do(steps.wait_for_ever, 1)[0] == "HostDied"
    assert program.do(steps.echo_each, [0, 2]) == ["x"] * 2


def test_a_power_cut_of_a_paused_host_is_detected_as_fast_as_any_other(
    cluster: WorkerCluster, program: Program
) -> None:
    program.do(steps.attach, cluster.addresses(), cluster.keys, {})
    program.do(steps.spawn, 1)
    waiting = program.begin(steps.wait_for_ever, 1)
    with cluster.world.faults.pause(cluster.hosts[1]):
        _pause.wait(1.0)
        cut = time.monotonic()
        with cluster.world.faults.power_cut(cluster.hosts[1]):
            assert waiting.result(LIMIT_S)[0] == "HostDied"
            assert time.monotonic() - cut < 4.0


def test_no_living_host_is_declared_dead_on_a_busy_machine(
    cluster: WorkerCluster, program: Program
) -> None:
    program.do(steps.attach, cluster.addresses(), cluster.keys, {"heartbeat_s": HEARTBEAT_S})
    program.do(steps.spawn, 2)
    with spinning(SPINNERS):
        traffic = program.begin(call_traffic.make_calls)
        _pause.wait(100 * HEARTBEAT_S)
        program.do(call_traffic.stop_calls)
        result = traffic.result(LIMIT_S)
    assert not result.wrong
    assert program.do(steps.program_told) == []
    assert program.do(steps.echo, "x") == ["x"] * 2 * len(cluster.hosts)
