"""Calls to meshes across hosts: casts, replies, and large payloads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from workers import WorkerProcess

from mesh_core import Actor, ProcDied, attach_to_workers, configured, current_rank, endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh

HOSTS, PROCS = 4, 2


class Recorder(Actor):
    """Stores the values that it received."""

    def __init__(self) -> None:
        self.me = int(current_rank().rank)
        self.seen: list[Any] = []

    @endpoint
    def rank(self) -> int:
        return self.me

    @endpoint
    def note(self, thing: Any) -> None:
        self.seen.append(len(thing) if isinstance(thing, bytes) else thing)

    @endpoint
    def all_seen(self) -> list[Any]:
        return self.seen

    @endpoint
    def total(self, array: np.ndarray[Any, Any]) -> float:
        array[0] += 1
        return float(array.sum())

    @endpoint
    def place(self, array: np.ndarray[Any, Any]) -> tuple[int, bool, float]:
        """Return the inode of the array's mapping, whether it is aligned, and its first value."""
        array += self.me
        address = array.ctypes.data
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, end = (int(at, 16) for at in line.split()[0].split("-"))
            if start <= address < end:
                return int(line.split()[4]), address % 64 == 0, float(array[0])
        raise AssertionError("every address is mapped")

    @endpoint
    def filled(self, count: int) -> np.ndarray[Any, Any]:
        return np.full(count, float(self.me))

    @endpoint
    def ask(self, others: Any) -> list[int]:
        return list(others.rank.call().get().values())

    @endpoint
    def end(self) -> None:
        import os

        os._exit(3)


@pytest.fixture(scope="module", params=[2, 16], ids=["tree", "flat"])
def procs(request: pytest.FixtureRequest) -> Iterator[ProcMesh]:
    workers = [WorkerProcess() for _ in range(HOSTS)]
    try:
        with configured(cast_fanout=request.param):
            hosts = attach_to_workers([worker.address for worker in workers])
            procs = hosts.spawn_procs({"gpus": PROCS}, name="wide")
            yield procs
            procs.stop().get()
            hosts.shutdown().get()
    finally:
        for worker in workers:
            with worker:
                pass


def test_every_rank_of_every_host_replies(procs: ProcMesh) -> None:
    recorders = procs.spawn("recorders", Recorder)
    assert list(recorders.rank.call().get().values()) == list(range(HOSTS * PROCS))
    assert list(recorders.slice(gpus=1).rank.call().get().values()) == [1, 3, 5, 7]
    assert list(recorders.slice(hosts=slice(1, 4, 2)).rank.call().get().values()) == [2, 3, 6, 7]


def test_a_long_message_arrives_intact_and_each_rank_gets_its_own_copy(procs: ProcMesh) -> None:
    recorders = procs.spawn("recorders", Recorder)
    array = np.arange(2_000_000, dtype=np.float64)
    sums = set(recorders.total.call(array).get(timeout=60).values())
    assert sums == {float(array.sum()) + 1}
    assert array[0] == 0


def test_processes_of_a_host_share_the_memory_of_a_long_array(procs: ProcMesh) -> None:
    recorders = procs.spawn("recorders", Recorder)
    array = np.ones(500_000)
    places = recorders.place.call(array).get(timeout=60).values()
    inodes = [inode for inode, _, _ in places]
    assert inodes[::PROCS] == inodes[1::PROCS]
    assert len(set(inodes)) == HOSTS
    assert all(is_aligned for _, is_aligned, _ in places)
    assert [first for _, _, first in places] == [1.0 + rank for rank in range(HOSTS * PROCS)]


def test_every_rank_returns_a_long_reply(procs: ProcMesh) -> None:
    recorders = procs.spawn("recorders", Recorder)
    answers = recorders.filled.call(500_000).get(timeout=60)
    for rank, answer in enumerate(answers.values()):
        assert answer.shape == (500_000,)
        assert set(answer) == {float(rank)}


def test_messages_keep_their_order_regardless_of_size_and_route(procs: ProcMesh) -> None:
    recorders = procs.spawn("recorders", Recorder)
    one = recorders.slice(hosts=2, gpus=1)
    expected: list[Any] = []
    for number in range(30):
        thing: Any = number if number % 5 else bytes(1_000_000 + number)
        (one if number % 3 == 0 else recorders).note.broadcast(thing)
        expected.append(len(thing) if isinstance(thing, bytes) else thing)
    assert one.all_seen.call_one().get(timeout=60) == expected
    others = [thing for number, thing in enumerate(expected) if number % 3]
    assert recorders.slice(hosts=1, gpus=0).all_seen.call_one().get(timeout=60) == others


def test_an_actor_calls_a_mesh_that_spans_hosts(procs: ProcMesh) -> None:
    recorders = procs.spawn("recorders", Recorder)
    asker = recorders.slice(hosts=1, gpus=1)
    assert asker.ask.call_one(procs.spawn("asked", Recorder)).get(timeout=60) == list(
        range(HOSTS * PROCS)
    )


def test_ranks_other_than_a_dead_one_still_reply(procs: ProcMesh) -> None:
    doomed = procs.spawn("doomed", Recorder)
    with pytest.raises(ProcDied) as raised:
        doomed.slice(hosts=3, gpus=0).end.call_one().get(timeout=60)
    assert raised.value.rank == (HOSTS - 1) * PROCS
    living = doomed.slice(hosts=slice(0, 3))
    assert list(living.rank.call().get(timeout=60).values()) == list(range(6))
    procs.replace(raised.value.rank)
