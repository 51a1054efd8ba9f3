"""Training on hosts that are lost, join and leave, without standby workers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.campaign import steps
from tests.hosts.cluster import WorkerCluster
from tests.hosts.cluster.two_hosts import cluster as cluster

LIMIT_S = 60.0


@pytest.mark.timeout(240)
def test_ranks_are_removed_and_added_with_their_hosts(
    cluster: WorkerCluster, tmp_path: Path
) -> None:
    staying, lost = cluster.hosts
    where = (cluster.addresses(), 0, cluster.keys, str(tmp_path), "", 1)
    with cluster.program() as program:
        assert program.begin(steps.start, *where).result() == 2
        program.do(steps.begin)
        program.begin(steps.wait_for_steps, 3, LIMIT_S).result()
        fault = cluster.world.faults.power_cut(lost)
        (recovery,) = program.begin(steps.wait_for_recovery, 0, LIMIT_S).result()
        assert recovery.kind == "host"
        assert recovery.lost_steps <= 1
        assert program.do(steps.host_names) == [staying.name]
        fault.heal()
        cluster.start_worker(lost)
        (address,) = cluster.addresses([lost])
        assert program.begin(steps.add_host, address, cluster.keys, LIMIT_S).result() == 2
        assert program.begin(steps.drain_host, 0, LIMIT_S).result() == 1
        program.begin(steps.wait_for_steps, 3, LIMIT_S).result()
        assert program.do(steps.host_names) == [lost.name]
        last, _, losses = program.begin(steps.finish, 0, LIMIT_S).result()
        assert sorted(losses) == list(range(last))
        assert all(map(math.isfinite, losses.values()))
        program.do(steps.end)
