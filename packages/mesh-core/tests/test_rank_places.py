"""A rank identifies a position: the state that a new process inherits, and the rest."""

from __future__ import annotations

import os
from typing import Any

import pytest

from mesh_core import Actor, ActorFailed, ProcDied, ProcMesh, endpoint, this_host
from mesh_core.testing import kill_proc


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.count = start

    @endpoint
    def add(self, n: int) -> int:
        self.count += n
        return self.count

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def exit(self) -> None:
        os._exit(1)

    @endpoint
    def fail(self) -> None:
        raise ValueError("broken")


class Teller(Actor):
    """Holds a handle of other actors."""

    def __init__(self, counters: Any) -> None:
        self.counters = counters

    @endpoint
    def add(self, n: int) -> list[int]:
        return list(self.counters.add.call(n).get().values())


@pytest.fixture
def own_procs() -> Any:
    procs = this_host().spawn_procs({"n": 3}, name="replaced")
    yield procs
    procs.stop().get()


def lose(procs: ProcMesh, counters: Any, rank: int) -> None:
    kill_proc(procs, rank)
    with pytest.raises(ProcDied):
        counters[rank].pid.call_one().get()


def test_handles_in_any_process_reach_the_replacement(own_procs: Any) -> None:
    counters = own_procs.spawn("counters", Counter, 10)
    teller = this_host().spawn_procs().spawn("teller", Teller, counters)
    part = counters.slice(n=[1, 2])
    assert teller.add.call_one(1).get() == [11, 11, 11]
    lose(own_procs, counters, 2)
    own_procs.replace(2)
    assert list(counters.add.call(0).get().values()) == [11, 11, 10]
    assert teller.add.call_one(5).get() == [16, 16, 15]
    assert list(part.add.call(0).get().values()) == [16, 15]


def test_all_actors_of_a_replaced_rank_are_spawned_again(own_procs: Any) -> None:
    first = own_procs.spawn("first", Counter, 1)
    second = own_procs.spawn("second", Counter, 2)
    lose(own_procs, first, 0)
    own_procs.replace(0)
    assert first[0].add.call_one(0).get() == 1
    assert second[0].add.call_one(0).get() == 2
    assert first[0].pid.call_one().get() == second[0].pid.call_one().get()


def test_pending_calls_are_not_sent_to_the_replacement(own_procs: Any) -> None:
    counters = own_procs.spawn("counters", Counter, 0)
    end = counters[1].exit.call_one()
    queued = [counters[1].add.call_one(1) for _ in range(100)]
    with pytest.raises(ProcDied):
        end.get()
    own_procs.replace(1)
    assert all(isinstance(one.exception(), ProcDied) for one in queued)
    assert counters[1].add.call_one(0).get() == 0


def test_live_ranks_serve_a_call_once_even_if_another_rank_died(own_procs: Any) -> None:
    counters = own_procs.spawn("counters", Counter, 0)
    kill_proc(own_procs, 2)
    with pytest.raises(ProcDied) as caught:
        counters.add.call(1).get()
    assert [failure.rank for _, failure in caught.value.failures] == [2]
    own_procs.replace(2)
    assert list(counters.add.call(0).get().values()) == [1, 1, 0]


def test_a_rank_can_be_replaced_repeatedly(own_procs: Any) -> None:
    counters = own_procs.spawn("counters", Counter, 0)
    pids = {counters[1].pid.call_one().get()}
    for _ in range(3):
        lose(own_procs, counters, 1)
        own_procs.replace(1)
        pids.add(counters[1].pid.call_one().get())
    assert len(pids) == 4


def test_a_failed_actor_is_replaced_in_its_process(own_procs: Any) -> None:
    counters = own_procs.spawn("counters", Counter, 7)
    pid = counters[0].pid.call_one().get()
    counters[0].fail.broadcast()
    with pytest.raises(ActorFailed):
        counters[0].add.call_one(1).get()
    counters.replace(0)
    assert counters[0].add.call_one(0).get() == 7
    assert counters[0].pid.call_one().get() == pid


def test_a_live_process_is_not_replaced(own_procs: Any) -> None:
    counters = own_procs.spawn("counters", Counter, 3)
    with pytest.raises(RuntimeError, match="is alive"):
        own_procs.replace(0)
    assert counters[0].add.call_one(1).get() == 4
    with pytest.raises(IndexError):
        own_procs.replace(3)
