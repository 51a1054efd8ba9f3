"""Training on hosts that are lost, join and leave, without standby workers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.campaign import steps
from tests.hosts.crew import Crew
from tests.hosts.crew.two_hosts import crew as crew

LIMIT_S = 60.0


@pytest.mark.timeout(240)
def test_ranks_are_removed_and_added_with_their_hosts(crew: Crew, tmp_path: Path) -> None:
    staying, lost = crew.hosts
    where = (crew.addresses(), 0, crew.keys, str(tmp_path), "", 1)
    with crew.program() as program:
        assert program.begin(steps.start, *where).result() == 2
        program.do(steps.begin)
        program.begin(steps.wait_for_steps, 3, LIMIT_S).result()
        fault = crew.world.faults.power_cut(lost)
        (recovery,) = program.begin(steps.wait_for_recovery, 0, LIMIT_S).result()
        assert recovery.kind == "host"
        assert recovery.lost_steps <= 1
        assert program.do(steps.host_names) == [staying.name]
        fault.heal()
        crew.start_worker(lost)
        (address,) = crew.addresses([lost])
        assert program.begin(steps.add_host, address, crew.keys, LIMIT_S).result() == 2
        assert program.begin(steps.drain_host, 0, LIMIT_S).result() == 1
        program.begin(steps.wait_for_steps, 3, LIMIT_S).result()
        assert program.do(steps.host_names) == [lost.name]
        last, _, losses = program.begin(steps.finish, 0, LIMIT_S).result()
        assert sorted(losses) == list(range(last))
        assert all(map(math.isfinite, losses.values()))
        program.do(steps.end)
