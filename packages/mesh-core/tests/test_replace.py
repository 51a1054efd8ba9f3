"""Replacing lost processes and actors explicitly, also during work."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import Owner, Worker

from mesh_core import Actor, ActorFailed, MeshStopped, ProcDied, endpoint, this_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh

# Much less than a message waits for the spawn of its receiver.
PROMPT_S = 30.0


@pytest.fixture
def trio() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs({"n": 3}, name="trio")
    yield procs
    procs.stop().get()


class Caller(Actor):
    """Holds a handle of other actors."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh

    @endpoint
    def add(self) -> int:
        result: int = self.mesh.add.call_one().get()
        return result


def lose(mesh: Any) -> int:
    """Kill the process of an actor; return its pid."""
    pid: int = mesh.pid.call_one().get()
    pending = mesh.sleep.call_one(60)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcDied):
        pending.get()
    return pid


def test_dead_process_is_replaced_with_all_its_actors(trio: ProcMesh) -> None:
    first, second = trio.spawn("first", Worker), trio.spawn("second", Worker)
    first.add.call(5).get()
    pid = lose(first.slice(n=1))
    trio.replace(1)
    assert first.add.call(0).get().values() == [5, 0, 5]
    assert second.add.call().get().values() == [1, 1, 1]
    assert first.slice(n=1).pid.call_one().get() != pid


def test_replacing_a_rank_of_actors_replaces_its_dead_process(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker)
    lose(mesh.slice(n=2))
    mesh.replace(2)
    assert mesh.add.call().get().values() == [1, 1, 1]


def test_a_rank_can_be_negative_or_a_point(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker)
    lose(mesh.slice(n=2))
    with pytest.raises(ProcDied) as caught:
        mesh.add.call().get()
    ((place, _),) = caught.value.failures
    trio.replace(place)
    assert mesh.slice(n=2).add.call_one().get() == 1
    lose(mesh.slice(n=2))
    trio.replace(-1)
    assert mesh.slice(n=2).add.call_one().get() == 1


def test_handles_of_other_actors_stay_valid(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker)
    caller = trio.slice(n=0).spawn("caller", Caller, mesh.slice(n=1))
    assert caller.add.call_one().get() == 1
    for _ in range(3):
        lose(mesh.slice(n=1))
        trio.replace(1)
        assert mesh.slice(n=1).add.call_one(0).get() == 0
        assert caller.add.call_one().get() == 1


def test_a_rank_is_replaced_while_other_ranks_serve_calls(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker)
    beside = [mesh.slice(n=rank).sleep.call_one(0.3) for rank in (0, 2)]
    lose(mesh.slice(n=1))
    trio.replace(1)
    assert mesh.slice(n=1).add.call_one().get() == 1
    assert [call.get() for call in beside] == [0.3, 0.3]


def test_a_failed_actor_is_replaced_in_its_process(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker)
    pids = mesh.pid.call().get().values()
    mesh.slice(n=1).fail.broadcast()
    with pytest.raises(ActorFailed):
        mesh.slice(n=1).add.call_one().get()
    mesh.replace(1)
    assert mesh.add.call().get().values() == [1, 1, 1]
    assert mesh.pid.call().get().values() == pids


def test_actor_that_hangs_is_replaced(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker)
    mesh.slice(n=1).spin.broadcast()
    mesh.replace(1)
    assert mesh.slice(n=1).add.call_one().get() == 1


def test_stopped_process_is_killed_and_replaced(trio: ProcMesh) -> None:
    workers = trio.spawn("workers", Worker)
    pid = workers.slice(n=2).pid.call_one().get()
    pending = workers.slice(n=2).sleep.call_one(60)
    os.kill(pid, signal.SIGSTOP)
    trio.kill(2)
    with pytest.raises(ProcDied) as died:
        pending.get()
    assert died.value.signal == signal.SIGKILL
    trio.kill(-1)  # Nothing happens: it is dead.
    trio.replace(2)
    assert workers.slice(n=2).pid.call_one().get() != pid


def test_a_live_process_is_not_replaced(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker)
    assert mesh.add.call().get().values() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="is alive"):
        trio.replace(1)
    assert mesh.add.call().get().values() == [2, 2, 2]


@pytest.mark.parametrize("rank", [3, -4, 100])
def test_rank_that_does_not_exist_is_refused(trio: ProcMesh, rank: int) -> None:
    with pytest.raises(IndexError):
        trio.replace(rank)
    with pytest.raises(IndexError):
        trio.spawn("worker", Worker).replace(rank)


def test_only_the_owner_can_replace_ranks(trio: ProcMesh) -> None:
    class Stranger(Actor):
        @endpoint
        def replace_it(self, mesh: Any) -> None:
            mesh.replace(0)

    stranger = trio.slice(n=0).spawn("stranger", Stranger)
    for mesh in (trio, trio.spawn("worker", Worker)):
        with pytest.raises(ValueError, match="the actor that owns it"):
            stranger.replace_it.call_one(mesh).get()


def test_an_actor_can_replace_processes_that_it_owns(trio: ProcMesh) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, True)
    _, child = owner.spawn_procs.call_one(2).get()
    lose(child.slice(n=1))
    owner.replace_procs.call_one(1).get()
    assert child.slice(n=1).add.call_one().get() == 1


def test_a_call_to_an_actor_that_is_not_restarted_is_refused_immediately(
    trio: ProcMesh,
) -> None:
    lost = trio.spawn("lost", Worker)
    kept = trio.spawn("kept", Worker, restart="permanent")
    caller = trio.slice(n=0).spawn("caller", Caller, lost.slice(n=1))
    assert caller.add.call_one().get() == 1
    lose(kept.slice(n=1))
    while kept.slice(n=1).add.call_one().exception() is not None:
        os.sched_yield()
    started = time.monotonic()
    with pytest.raises(MeshStopped):
        lost.slice(n=1).add.call_one().get()
    # It may be notified of the death only now, or already know the new process.
    with pytest.raises((MeshStopped, ProcDied)):
        caller.add.call_one().get()
    assert time.monotonic() - started < PROMPT_S
    lost.replace(1)
    # The caller is another process, so its message may arrive before the spawn.
    lost.initialized.get()
    assert caller.add.call_one().get() == 1


def test_a_call_to_an_actor_stopped_before_a_replacement_fails_immediately(
    trio: ProcMesh,
) -> None:
    stopped, kept = trio.spawn("stopped", Worker), trio.spawn("kept", Worker)
    caller = trio.slice(n=0).spawn("caller", Caller, stopped.slice(n=1))
    stopped.stop().get()
    lose(kept.slice(n=1))
    trio.replace(1)
    started = time.monotonic()
    with pytest.raises(MeshStopped):
        caller.add.call_one().get()
    assert time.monotonic() - started < PROMPT_S
    assert kept.slice(n=1).add.call_one().get() == 1


def test_a_failure_after_a_replacement_is_reported_as_a_new_failure(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker)
    for _ in range(4):
        pid = lose(mesh.slice(n=1))
        with pytest.raises(ProcDied) as caught:
            mesh.add.call().get()
        assert caught.value.pid == pid
        trio.replace(1)
