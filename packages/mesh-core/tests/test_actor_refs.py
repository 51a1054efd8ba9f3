"""Handles in messages: actors that receive handles of actors, and actors that spawn others."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import (
    Actor,
    ActorMesh,
    Extent,
    MeshStopped,
    Point,
    ProcMesh,
    ValueMesh,
    current_rank,
    endpoint,
    this_host,
    this_proc,
)

if TYPE_CHECKING:
    from mesh_core import HostMesh


class Leaf(Actor):
    def __init__(self, value: Any = None) -> None:
        self.value = value

    @endpoint
    def get(self) -> Any:
        return self.value

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def crash(self) -> None:
        raise RuntimeError("leaf")


class Node(Actor):
    """Receives handles and forwards them."""

    def __init__(self) -> None:
        self.peers: Any = None

    @endpoint
    def meet(self, peers: Any) -> None:
        self.peers = peers

    @endpoint
    def met(self) -> Any:
        return self.peers

    @endpoint
    def ask_peer(self) -> Any:
        mine = current_rank().rank
        return self.peers.slice(gpus=(mine + 1) % len(self.peers)).rank.call_one().get()

    @endpoint
    def ask_all(self) -> list[Any]:
        return list(self.peers.pid.call().get().values())

    @endpoint
    def spawn_beside(self, value: Any) -> Any:
        self.children = this_proc().spawn("leaf", Leaf, value)
        return self.children

    @endpoint
    def spawn_on(self, procs: ProcMesh) -> Any:
        self.children = procs.spawn("leaf", Leaf, "spawned")
        return list(self.children.get.call().get().values())

    @endpoint
    def spawn_procs(self, count: int) -> Any:
        self.procs = this_host().spawn_procs({"n": count}, name="inner")
        self.children = self.procs.spawn("leaf", Leaf, "inner")
        return list(self.children.pid.call().get().values())

    @endpoint
    def stop_procs(self) -> None:
        self.procs.stop().get()

    @endpoint
    def child(self) -> Any:
        return self.children

    @endpoint
    def stop_other(self, mesh: Any) -> None:
        mesh.stop().get()

    @endpoint
    def where(self) -> tuple[HostMesh, ProcMesh]:
        return this_host(), this_proc()


class AsyncNode(Actor):
    @endpoint
    async def spawn_procs(self, count: int) -> Any:
        procs = this_host().spawn_procs({"n": count}, name="inner")
        await procs.initialized
        leaves = procs.spawn("leaf", Leaf, "async")
        values = list((await leaves.get.call()).values())
        await procs.stop()
        return values

    @endpoint
    async def nested(self, other: Any) -> Any:
        leaf = this_proc().spawn("leaf", Leaf, 5)
        return await leaf.get.call_one(), await other.get.call_one()


def test_a_handle_works_in_every_process_and_survives_a_round_trip(procs: ProcMesh) -> None:
    leaves, nodes = procs.spawn("leaf", Leaf, 1), procs.spawn("node", Node)
    for part in (leaves, leaves.slice(gpus=2), leaves.slice(gpus=slice(None, None, -2))):
        nodes.meet.call(part).get()
        back = nodes.slice(gpus=1).met.call_one().get()
        assert isinstance(back, ActorMesh)
        assert back == part
        assert hash(back) == hash(part)
        assert back.extent == part.extent
        assert list(back.get.call().get().values()) == [1] * len(part)


def test_actors_in_a_ring_call_their_neighbours(procs: ProcMesh) -> None:
    leaves, nodes = procs.spawn("leaf", Leaf), procs.spawn("node", Node)
    nodes.meet.call(leaves).get()
    assert list(nodes.ask_peer.call().get().values()) == [0] * 4
    pids = list(leaves.pid.call().get().values())
    assert list(nodes.ask_all.call().get().values()) == [pids] * 4


def test_a_handle_can_be_a_spawn_argument_or_nested_in_a_value(procs: ProcMesh) -> None:
    leaf = procs.slice(gpus=1).spawn("leaf", Leaf, {"deep": 1})
    holder = procs.slice(gpus=2).spawn("leaf", Leaf, {"handles": [leaf]})
    back = holder.get.call_one().get()["handles"][0]
    assert back.get.call_one().get() == {"deep": 1}


def test_meshes_points_and_values_can_be_sent(procs: ProcMesh) -> None:
    node = procs.slice(gpus=0).spawn("node", Node)
    values = procs.spawn("leaf", Leaf, 3).get.call().get()
    extent = Extent(("a", "b"), (2, 3))
    for value in (procs, procs.slice(gpus=1), this_host(), extent, Point(4, extent), values):
        node.meet.call_one(value).get()
        back = node.met.call_one().get()
        assert back == value
        assert type(back) is type(value)
    assert isinstance(back, ValueMesh)


def test_an_actor_spawns_actors_in_its_own_process(procs: ProcMesh) -> None:
    nodes = procs.spawn("node", Node)
    children = nodes.spawn_beside.call("mine").get()
    pids = list(procs.spawn("leaf", Leaf).pid.call().get().values())
    assert [child.pid.call_one().get() for child in children.values()] == pids
    assert [child.get.call_one().get() for child in children.values()] == ["mine"] * 4


def test_an_actor_spawns_actors_on_processes_that_it_received(procs: ProcMesh) -> None:
    node = procs.slice(gpus=0).spawn("node", Node)
    assert node.spawn_on.call_one(procs.slice(gpus=slice(1, 3))).get() == ["spawned"] * 2


@pytest.mark.parametrize("rank", [0, 2])
def test_an_actor_spawns_processes_and_stops_them(procs: ProcMesh, rank: int) -> None:
    node = procs.slice(gpus=rank).spawn("node", Node)
    pids = node.spawn_procs.call_one(2).get()
    assert len(set(pids)) == 2
    assert os.getpid() not in pids
    children = node.child.call_one().get()
    assert list(children.get.call().get().values()) == ["inner"] * 2
    node.stop_procs.call_one().get()
    with pytest.raises(MeshStopped):
        children.get.call().get()


def test_async_endpoints_can_spawn_processes_and_actors(procs: ProcMesh) -> None:
    node = procs.slice(gpus=1).spawn("node", AsyncNode)
    assert node.spawn_procs.call_one(2).get() == ["async"] * 2
    leaf = procs.slice(gpus=2).spawn("leaf", Leaf, 6)
    assert node.nested.call_one(leaf).get() == (5, 6)


def test_processes_spawned_by_an_actor_stop_with_it(procs: ProcMesh) -> None:
    node = procs.slice(gpus=0).spawn("node", Node)
    pids = node.spawn_procs.call_one(2).get()
    node.stop().get()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_only_the_owner_can_stop_a_mesh(procs: ProcMesh) -> None:
    leaves, node = procs.spawn("leaf", Leaf, 1), procs.slice(gpus=0).spawn("node", Node)
    with pytest.raises(ValueError, match="slice"):
        leaves.slice(gpus=0).stop()
    with pytest.raises(ValueError, match="only the actor that owns it"):
        node.stop_other.call_one(leaves).get()
    assert list(leaves.get.call().get().values()) == [1] * 4
    leaves.stop().get()
    with pytest.raises(MeshStopped):
        leaves.get.call().get()


def test_an_actor_knows_its_host_and_process(procs: ProcMesh) -> None:
    nodes = procs.spawn("node", Node)
    for point, (host, proc) in nodes.where.call().get():
        assert host == this_host()
        assert proc == procs.slice(gpus=point["gpus"])


def test_a_handle_can_be_called_concurrently_by_many_actors(procs: ProcMesh) -> None:
    leaves, nodes = procs.spawn("leaf", Leaf, 9), procs.spawn("node", Node)
    nodes.meet.call(leaves).get()

    async def main() -> None:
        results = await asyncio.gather(*[nodes.ask_peer.call() for _ in range(50)])
        assert all(list(result.values()) == [0] * 4 for result in results)

    asyncio.run(main())
