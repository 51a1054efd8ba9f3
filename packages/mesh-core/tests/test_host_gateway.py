"""Replaced machines and programs if a gateway is the only route."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from kept_actors import Counter
from lost_program import LostProgram
from test_host_replace import LIMIT_S, Member, cut_power
from worker_fixtures import frequent_heartbeats as frequent_heartbeats
from worker_fixtures import fresh_job as fresh_job
from workers import WorkerProcess

from mesh_core import Credentials, HostDied, attach_to_workers, take_over

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("frequent_heartbeats")

ATTACH_BEHIND = """
credentials = Credentials.load(folder + "/controller")
near = attach_to_workers(workers[:1], credentials=credentials, orphan_grace_s=60, name="near")
far = attach_to_workers(
    workers[1:2], credentials=credentials, orphan_grace_s=60, name="far", gateway=workers[2]
)
near.spawn_procs().spawn("near", Counter, 1).add.call(0).get()
far.spawn_procs().spawn("far", Counter, 2).add.call(0).get()
"""


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    """The credentials of the controller in one folder, and of the workers in another."""
    made = Credentials.create()
    made.save(tmp_path / "controller")
    made.issue(role="worker", name="host").save(tmp_path / "worker")
    return made


@pytest.fixture
def workers(credentials: Credentials, tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    """Two machines, and a gateway to them."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(WorkerProcess(credentials=tmp_path / "worker")) for _ in range(3)
        ]


@pytest.mark.parametrize("is_spare", [True, False])
def test_a_replacement_is_reached_through_the_gateway(
    workers: list[WorkerProcess], credentials: Credentials, is_spare: bool
) -> None:
    host, other, gateway = workers
    asked = [host.address, other.address] if is_spare else [host.address]
    hosts = attach_to_workers(
        asked, standby=len(asked) - 1, credentials=credentials, gateway=gateway.address
    )
    mesh = hosts.spawn_procs().spawn("member", Member)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1]
    cut_power(host, mesh.slice(hosts=0))
    hosts.replace(0, None if is_spare else other.address)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1]
    cut_power(gateway, mesh.slice(hosts=0))
    with pytest.raises(HostDied):
        mesh.add.call().get(timeout=LIMIT_S)


def test_a_successor_uses_the_gateways_of_the_previous_program(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    addresses = [worker.address for worker in workers]
    with LostProgram(tmp_path, addresses, ATTACH_BEHIND) as program:
        program.kill()
    job = take_over(addresses[:1], credentials=credentials)
    assert job.failures == ()
    near, far = job.actor("near", Counter), job.actor("far", Counter)
    assert near.add.call(1).get(timeout=LIMIT_S).values() == [2]
    assert far.add.call(1).get(timeout=LIMIT_S).values() == [3]
    workers[2].power_off()
    with pytest.raises(HostDied):
        far.add.call(0).get(timeout=LIMIT_S)
    assert near.add.call(1).get(timeout=LIMIT_S).values() == [3]


def test_a_successor_can_use_a_gateway_that_the_previous_program_did_not_need(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    host, other, gateway = (worker.address for worker in workers)
    attach = """
    credentials = Credentials.load(folder + "/controller")
    hosts = attach_to_workers(workers[:2], credentials=credentials, orphan_grace_s=60)
    hosts.spawn_procs().spawn("counter", Counter, 1).add.call(0).get()
    """
    with LostProgram(tmp_path, [host, other, gateway], attach) as program:
        program.kill()
    job = take_over([host], credentials=credentials, gateway=gateway)
    counters = job.actor("counter", Counter)
    assert counters.add.call(1).get(timeout=LIMIT_S).values() == [2, 2]
    workers[2].power_off()
    with pytest.raises(HostDied):
        counters.add.call(0).get(timeout=LIMIT_S)
