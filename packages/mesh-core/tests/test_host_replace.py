"""A replacement for a dead machine: handles stay valid, and no state is carried over."""

from __future__ import annotations

import itertools
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import Worker
from host_recorder import wait_until_gone
from worker_fixtures import attached
from worker_fixtures import frequent_heartbeats as frequent_heartbeats
from worker_fixtures import fresh_job as fresh_job
from worker_fixtures import workers as workers
from workers import WorkerProcess

from mesh_core import (
    Actor,
    HostDied,
    MeshFailure,
    add_standby_workers,
    configured,
    endpoint,
    this_host,
)

if TYPE_CHECKING:
    from mesh_core import HostMesh

LIMIT_S = 30.0

pytestmark = pytest.mark.usefixtures("frequent_heartbeats")


class Member(Worker):
    """The actor on the hosts."""

    @endpoint
    def echo(self, value: Any) -> Any:
        """Return the argument."""
        return value

    @endpoint
    def never(self) -> None:
        """Never return."""
        signal.pause()


class Caller(Actor):
    """Holds a handle of other actors, on any host."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh

    @endpoint
    def add(self, amount: int) -> list[int]:
        values: list[int] = self.mesh.add.call(amount).get().values()
        return values

    @endpoint
    def epoch(self) -> int:
        number: int = self.mesh.host_epoch
        return number


def cut_power(worker: WorkerProcess, mesh: Any) -> None:
    """Kill all processes of a machine, and wait until a caller gets the error."""
    pending = mesh.never.call_one()
    worker.power_off()
    with pytest.raises(HostDied):
        pending.get(timeout=LIMIT_S)


def test_all_handles_reach_the_replacement_of_a_dead_machine(
    workers: list[WorkerProcess],
) -> None:
    hosts = attached(workers[:2])
    procs = hosts.spawn_procs({"procs": 2})
    mesh = procs.spawn("member", Member)
    held = mesh.slice(hosts=1)
    elsewhere = procs.slice(hosts=0, procs=0).spawn("caller", Caller, mesh)
    here = this_host().spawn_procs().spawn("caller", Caller, held)
    assert elsewhere.add.call_one(1).get(timeout=LIMIT_S) == [1, 1, 1, 1]
    assert here.add.call_one(1).get(timeout=LIMIT_S) == [2, 2]
    cut_power(workers[1], mesh.slice(hosts=1, procs=0))
    hosts.replace(1, workers[2].address)
    assert mesh.add.call(1).get(timeout=LIMIT_S).values() == [2, 2, 1, 1]
    assert held.add.call(1).get(timeout=LIMIT_S).values() == [2, 2]
    assert elsewhere.add.call_one(1).get(timeout=LIMIT_S) == [3, 3, 3, 3]
    assert here.add.call_one(1).get(timeout=LIMIT_S) == [4, 4]
    again = hosts.spawn_procs({"procs": 1}).spawn("again", Member)
    assert again.add.call().get(timeout=LIMIT_S).values() == [1, 1]


def test_survivors_continue_while_a_host_is_dead(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:2])
    mesh = hosts.spawn_procs({"procs": 1}).spawn("member", Member)
    mesh.echo.call(0).get(timeout=LIMIT_S)
    cut_power(workers[1], mesh.slice(hosts=1))
    assert mesh.slice(hosts=0).echo.call_one(1).get(timeout=LIMIT_S) == 1
    more = hosts.slice(hosts=0).spawn_procs({"procs": 1}).spawn("more", Member)
    assert more.echo.call(2).get(timeout=LIMIT_S).values() == [2]
    with pytest.raises(HostDied):
        hosts.spawn_procs({"procs": 1})


def test_a_host_can_be_replaced_repeatedly(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:1])
    mesh = hosts.spawn_procs({"procs": 1}).spawn("member", Member)
    caller = this_host().spawn_procs().spawn("caller", Caller, mesh)
    assert mesh.host_epoch == 0
    for lost, taken in ((0, 1), (1, 2)):
        assert mesh.add.call(1).get(timeout=LIMIT_S).values() == [1]
        cut_power(workers[lost], mesh.slice(hosts=0))
        hosts.replace(0, workers[taken].address)
        assert caller.add.call_one(0).get(timeout=LIMIT_S) == [0]
        assert mesh.host_epoch == hosts.host_epoch == taken
        assert caller.epoch.call_one().get(timeout=LIMIT_S) == taken


def test_a_call_to_a_rank_that_was_not_restarted_fails_immediately(
    workers: list[WorkerProcess],
) -> None:
    hosts = attached(workers[:1])
    mesh = hosts.spawn_procs({"procs": 1}).spawn("member", Member)
    owner = this_host().spawn_procs().spawn("owner", Owner, hosts)
    theirs = owner.spawn_there.call_one().get(timeout=LIMIT_S)
    assert theirs.add.call().get(timeout=LIMIT_S).values() == [1]
    cut_power(workers[0], mesh.slice(hosts=0))
    hosts.replace(0, workers[1].address)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1]
    with pytest.raises(HostDied):
        theirs.add.call().get(timeout=LIMIT_S)
    owner.replace_rank.call_one(0).get(timeout=LIMIT_S)
    assert theirs.add.call().get(timeout=LIMIT_S).values() == [1]


class Owner(Actor):
    """Owns processes on the hosts, and handles their failures."""

    def __init__(self, hosts: HostMesh) -> None:
        self.hosts = hosts
        self.heard: list[str] = []
        self.lost: list[str] = []

    @endpoint
    def spawn_there(self) -> Any:
        self.procs = self.hosts.spawn_procs({"procs": 1})
        return self.procs.spawn("theirs", Member)

    @endpoint
    def replace_rank(self, rank: int) -> None:
        self.procs.replace(rank)

    @endpoint
    def replace_host(self, rank: int, worker: str) -> None:
        self.hosts.replace(rank, worker)

    @endpoint
    def failures(self) -> list[str]:
        return self.heard

    @endpoint
    def lost_meshes(self) -> list[str]:
        return self.lost

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.heard.append(type(failure.error).__name__)
        self.lost += [type(mesh).__name__ for mesh in failure.meshes]
        return True


def test_an_actor_replaces_a_host_that_it_uses(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:2])
    on_first = hosts.slice(hosts=0).spawn_procs()
    owner = on_first.spawn("owner", Owner, hosts.slice(hosts=1))
    theirs = owner.spawn_there.call_one().get(timeout=LIMIT_S)
    assert theirs.add.call().get(timeout=LIMIT_S).values() == [1]
    workers[1].power_off()
    with pytest.raises(HostDied):
        theirs.never.call().get(timeout=LIMIT_S)
    owner.replace_host.call_one(0, workers[2].address).get(timeout=LIMIT_S)
    assert theirs.add.call().get(timeout=LIMIT_S).values() == [1]


def test_an_owner_gets_one_failure_with_all_meshes_of_a_dead_host(
    workers: list[WorkerProcess],
) -> None:
    hosts = attached(workers[:2])
    owner = this_host().spawn_procs().spawn("owner", Owner, hosts.slice(hosts=1))
    theirs = owner.spawn_there.call_one().get(timeout=LIMIT_S)
    theirs.add.call().get(timeout=LIMIT_S)
    owner.spawn_there.call_one().get(timeout=LIMIT_S).add.call().get(timeout=LIMIT_S)
    workers[1].power_off()
    with configured(failure_grace_s=0.0):
        while not owner.failures.call_one().get(timeout=LIMIT_S):
            os.sched_yield()
    assert owner.failures.call_one().get(timeout=LIMIT_S) == ["HostDied"]
    lost = owner.lost_meshes.call_one().get(timeout=LIMIT_S)
    assert lost == ["ProcMesh", "ProcMesh", "ActorMesh", "ActorMesh"]


def test_replacing_a_live_host_is_refused(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:1])
    mesh = hosts.spawn_procs().spawn("member", Member)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1]
    with pytest.raises(RuntimeError, match="is alive"):
        hosts.replace(0, workers[1].address)
    with pytest.raises(RuntimeError, match="the program"):
        this_host().replace(0)
    with pytest.raises(IndexError):
        hosts.replace(1)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [2]


def test_the_error_says_why_no_replacement_is_available(workers: list[WorkerProcess]) -> None:
    with configured(attach_timeout_s=0.1):
        hosts = attached(workers[:1])
    procs = hosts.spawn_procs()
    mesh = procs.spawn("member", Member)
    mesh.add.call().get(timeout=LIMIT_S)
    cut_power(workers[0], mesh.slice(hosts=0))
    workers[0].end()
    with pytest.raises(HostDied, match="no standby worker is left"):
        procs.replace(0)
    with pytest.raises(HostDied, match="cannot be reached"):
        hosts.replace(0)
    hosts.replace(0, workers[1].address)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1]


def test_standby_workers_can_be_added_later(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:1])
    procs = hosts.spawn_procs()
    mesh = procs.spawn("member", Member)
    for worker, standby in itertools.pairwise(workers):
        mesh.add.call().get(timeout=LIMIT_S)
        add_standby_workers(hosts, [standby.address])
        cut_power(worker, mesh.slice(hosts=0))
        procs.replace(0)
        assert mesh.add.call().get(timeout=LIMIT_S).values() == [1]


def test_workers_in_use_cannot_be_standby_workers(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:2], standby=1)
    for worker in workers[:2]:
        with pytest.raises(ValueError, match="is a host or a standby worker already"):
            add_standby_workers(hosts, [worker.address])
    with pytest.raises(ValueError, match="was not attached by this program"):
        add_standby_workers(this_host(), [workers[2].address])
    with pytest.raises(ValueError, match="is a single string"):
        add_standby_workers(hosts, workers[2].address)


def test_a_worker_that_could_not_be_attached_is_replaced(workers: list[WorkerProcess]) -> None:
    workers[0].end()
    with configured(attach_timeout_s=0.1):
        hosts = attached(workers[:1])
    with pytest.raises(HostDied):
        hosts.initialized.get(timeout=LIMIT_S)
    hosts.replace(0, workers[1].address)
    assert hosts.spawn_procs().spawn("member", Member).echo.call(1).get().values() == [1]


def test_meshes_with_a_dead_host_stop_without_an_error(workers: list[WorkerProcess]) -> None:
    hosts = attached(workers[:2])
    procs = hosts.spawn_procs({"procs": 2})
    mesh = procs.spawn("member", Member)
    pids = mesh.slice(hosts=0).pid.call().get(timeout=LIMIT_S).values()
    mesh.echo.call(0).get(timeout=LIMIT_S)
    cut_power(workers[1], mesh.slice(hosts=1, procs=0))
    mesh.stop().get(timeout=LIMIT_S)
    procs.stop().get(timeout=LIMIT_S)
    wait_until_gone(pids)
    hosts.shutdown().get(timeout=LIMIT_S)


def test_meshes_not_restarted_on_a_replaced_host_can_be_stopped(
    workers: list[WorkerProcess],
) -> None:
    hosts = attached(workers[:1])
    procs = hosts.spawn_procs({"procs": 1})
    mesh = procs.spawn("member", Member)
    owner = this_host().spawn_procs().spawn("owner", Owner, hosts)
    owner.spawn_there.call_one().get(timeout=LIMIT_S).add.call().get(timeout=LIMIT_S)
    cut_power(workers[0], mesh.slice(hosts=0))
    owner.replace_host.call_one(0, workers[1].address).get(timeout=LIMIT_S)
    mesh.stop().get(timeout=LIMIT_S)
    procs.stop().get(timeout=LIMIT_S)
