"""A host of a simulated cluster moves to another machine, under the faults of many seeds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mesh_core import Actor, MeshStopped, ProcMesh, current_rank, endpoint
from mesh_core.testing import SimulatedCluster, SimulatedFaults, mesh_simulation

COUNT = 30
MOVES = 3
#: No process dies, so every move succeeds and no call fails.
FAULTS = SimulatedFaults(kills=0, stalls=2, breaks=4, partitions=1, slow_hosts=1, within_s=2.0)


class Ledger(Actor):
    """Records every call that it executes, as a part of its state."""

    def __init__(self) -> None:
        self.executed: list[tuple[int, int]] = []

    @endpoint
    def add(self, sender: int, number: int) -> int:
        """Record a call."""
        self.executed.append((sender, number))
        return number

    @endpoint
    def all(self) -> list[tuple[int, int]]:
        """Return the executed calls, in order."""
        return self.executed


class Owner(Actor):
    """Owns ledgers."""

    @endpoint
    def spawn(self, procs: ProcMesh) -> Any:
        """Spawn them."""
        return procs.spawn("ledger", Ledger)


class Caller(Actor):
    """Calls ledgers one time after the other."""

    @endpoint
    def run(self, ledgers: Any) -> None:
        """Send numbers in order, with pauses."""
        sender = current_rank().rank
        for number in range(COUNT):
            assert set(ledgers.add.call(sender, number).get().values()) == {number}
            time.sleep(0.02)


def move(cluster: SimulatedCluster) -> None:
    """Move a host while actors on another host call the actors on it, and check every call."""
    procs = cluster.hosts.spawn_procs({"procs": 2})
    ledgers = procs.slice(hosts=slice(0, 2)).spawn("ledger", Ledger)
    callers = procs.slice(hosts=2).spawn("caller", Caller)
    running = callers.run.call(ledgers)
    for _ in range(MOVES):
        cluster.hosts.drain(0)
    running.get()
    assert cluster.hosts.slice(hosts=0).host_epoch == MOVES
    for executed in ledgers.all.call().get().values():
        for sender in range(2):
            assert [number for one, number in executed if one == sender] == [*range(COUNT)]


def move_owner(cluster: SimulatedCluster) -> None:
    """Move the host of an actor that owns others there and on another host, and stop it."""
    procs = cluster.hosts.spawn_procs({"procs": 2})
    owner = procs.slice(hosts=0, procs=0).spawn("owner", Owner)
    ledgers = owner.spawn.call_one(procs.slice(hosts=slice(0, 2))).get()
    for number in range(MOVES):
        assert set(ledgers.add.call(0, number).get().values()) == {number}
        cluster.hosts.drain(0)
    executed = ledgers.all.call().get().values()
    assert executed == [[(0, number) for number in range(MOVES)]] * 4
    owner.stop().get()
    with pytest.raises(MeshStopped):
        ledgers.all.call().get()


def test_each_call_is_executed_once_while_a_host_moves() -> None:
    mesh_simulation(seeds=60, hosts=3, standby=MOVES, faults=FAULTS)(move)()


def test_an_owner_moves_with_its_meshes() -> None:
    mesh_simulation(seeds=20, hosts=3, standby=MOVES, faults=FAULTS)(move_owner)()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_call_is_executed_once_in_ten_thousand_moves() -> None:
    mesh_simulation(seeds=3400, hosts=3, standby=MOVES, faults=FAULTS)(move)()
