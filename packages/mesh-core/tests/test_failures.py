"""Errors that a caller gets when a process or an actor is lost, and what remains usable."""

from __future__ import annotations

import os
import pickle
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import AsyncWorker, Worker

from mesh_core import (
    ActorError,
    ActorFailed,
    MeshError,
    MeshStopped,
    ProcDied,
    SpawnError,
    SupervisionError,
    this_host,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh

# Far above the actual duration, and half of the shortest sleep of a lost process.
PROMPT_S = 30.0


@pytest.fixture
def pair() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs({"n": 2}, name="pair")
    yield procs
    procs.stop().get()


def kill(mesh: Any) -> int:
    pid: int = mesh.pid.call_one().get()
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
def test_a_call_to_a_killed_process_raises_immediately_with_all_details(
    pair: ProcMesh, cls: Any
) -> None:
    mesh = pair.spawn("workers", cls)
    second = mesh.slice(n=1)
    pending = second.sleep.call_one(60)
    pid = _pid(pair, 1)
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcDied) as caught:
        pending.get()
    assert time.monotonic() - started < PROMPT_S
    error = caught.value
    assert error.rank == 1
    assert error.point == {"n": 1}
    assert error.mesh_name == "workers"
    assert error.actor == cls.__name__
    assert error.host == os.uname().nodename
    assert error.pid == pid
    assert error.signal == signal.SIGKILL
    assert error.exit_code is None
    assert error.endpoint == "sleep"


@pytest.mark.parametrize("waits_for", ["called", "beside"])
def test_the_error_of_a_dead_process_names_all_its_actors(pair: ProcMesh, waits_for: str) -> None:
    meshes = {name: pair.spawn(name, Worker) for name in ("called", "beside")}
    pair.slice(n=0).spawn("elsewhere", Worker).pid.call_one().get()
    pending = meshes[waits_for].slice(n=1).sleep.call_one(60)
    os.kill(_pid(pair, 1), signal.SIGKILL)
    with pytest.raises(ProcDied) as caught:
        pending.get()
    died = caught.value
    assert [(one.mesh_name, one.actor, one.rank, one.point) for one in died.actors] == [
        ("called", "Worker", 1, {"n": 1}),
        ("beside", "Worker", 1, {"n": 1}),
    ]
    assert "actors that died with it: actor 'Worker' of mesh 'called', rank 1 (n=1); " in str(died)
    assert pickle.loads(pickle.dumps(died)).actors[1].mesh_name == "beside"


def _pid(procs: ProcMesh, rank: int) -> int:
    """Query the pid from the agent, which replies even if the actor is busy."""
    from mesh_core._runtime.runtime import runtime

    pid: int = runtime().ask_agent(procs._table.proc(rank), "pid")
    return pid


def test_the_error_has_the_exit_status_and_the_last_log_lines(pair: ProcMesh) -> None:
    mesh = pair.spawn("workers", Worker)
    with pytest.raises(ProcDied) as caught:
        mesh.slice(n=0).leave.call_one(7).get()
    assert caught.value.exit_code == 7
    assert caught.value.signal is None
    assert "the last words of" in caught.value.log_tail[-1]


def test_the_error_of_a_segfault_has_the_signal_and_the_stack(pair: ProcMesh) -> None:
    mesh = pair.spawn("workers", Worker)
    with pytest.raises(ProcDied, match="SIGSEGV") as caught:
        mesh.slice(n=0).crash.call_one().get()
    assert caught.value.signal == signal.SIGSEGV
    assert any("crash" in line for line in caught.value.log_tail), caught.value.log_tail


def test_sys_exit_in_an_endpoint_is_an_ordinary_exception(pair: ProcMesh) -> None:
    mesh = pair.spawn("workers", Worker).slice(n=0)
    with pytest.raises(ActorError):
        mesh.leave_by_raising.call_one().get()
    assert mesh.add.call_one().get() == 1


def test_other_ranks_and_slices_continue_after_a_death(pair: ProcMesh) -> None:
    mesh = pair.spawn("workers", Worker)
    kill(mesh.slice(n=1))
    with pytest.raises(ProcDied):
        mesh.slice(n=1).add.call_one().get()
    assert mesh.slice(n=0).add.call_one().get() == 1
    started = time.monotonic()
    with pytest.raises(ProcDied):
        mesh.slice(n=1).add.call().get()
    assert time.monotonic() - started < PROMPT_S
    assert pair.slice(n=0).spawn("more", Worker).add.call_one().get() == 1


def test_the_error_of_a_mesh_call_names_the_dead_rank(pair: ProcMesh) -> None:
    mesh = pair.spawn("workers", Worker)
    kill(mesh.slice(n=1))
    with pytest.raises(ProcDied) as caught:
        mesh.add.call().get()
    ((place, failure),) = caught.value.failures
    assert place.rank == 1
    assert failure is caught.value


def test_return_exceptions_returns_both_results_and_the_death(pair: ProcMesh) -> None:
    mesh = pair.spawn("workers", Worker)
    kill(mesh.slice(n=1))
    values = mesh.add.options(return_exceptions=True).call().get()
    assert values.slice(n=0).item() == 1
    assert isinstance(values.slice(n=1).item(), ProcDied)


def test_a_stream_includes_the_death_among_the_replies(pair: ProcMesh) -> None:
    mesh = pair.spawn("workers", Worker)
    kill(mesh.slice(n=1))
    outcomes = [future.exception() for future in mesh.add.stream()]
    assert sorted(type(o).__name__ for o in outcomes) == ["NoneType", "ProcDied"]


async def test_awaiting_a_call_to_a_killed_process_raises(pair: ProcMesh) -> None:
    mesh = pair.spawn("workers", Worker)
    pid = await mesh.slice(n=1).pid.call_one()
    pending = mesh.slice(n=1).sleep.call_one(60)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcDied):
        await pending


@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
def test_an_actor_that_fails_in_a_broadcast_is_lost_and_the_error_says_why(
    proc: ProcMesh, cls: Any
) -> None:
    mesh = proc.spawn("worker", cls)
    mesh.fail.broadcast("of a broadcast")
    with pytest.raises(ActorFailed) as caught:
        mesh.add.call_one().get()
    assert isinstance(caught.value.__cause__, KeyError)
    assert "of a broadcast" in str(caught.value)
    assert "raise KeyError(text)" in caught.value.__cause__.exception_formatted  # type: ignore[attr-defined]
    assert proc.spawn("worker", cls).add.call_one().get() == 1


def test_a_failure_in_an_explicit_port_endpoint_fails_the_actor_and_the_call(
    proc: ProcMesh,
) -> None:
    mesh = proc.spawn("worker", Worker)
    with pytest.raises(ActorFailed, match="with a port"):
        mesh.fail_with_port.call_one().get()
    with pytest.raises(ActorFailed):
        mesh.add.call_one().get()


def test_a_concurrent_failure_without_a_caller_fails_the_actor_and_its_calls(
    proc: ProcMesh,
) -> None:
    mesh = proc.spawn("worker", AsyncWorker)
    beside = mesh.sleep_beside.call_one(60)
    running = mesh.sleep.call_one(0.2)
    mesh.fail_beside.broadcast()
    assert running.get() == 0.2
    with pytest.raises(ActorFailed, match="beside"):
        beside.get()


def test_failed_init_is_raised_by_initialized_and_by_calls(proc: ProcMesh) -> None:
    mesh = proc.spawn("worker", Worker, "no disk")
    for outcome in (mesh.initialized, mesh.add.call_one()):
        with pytest.raises(ActorFailed, match="no disk") as caught:
            outcome.get()
        cause = caught.value.__cause__
        assert isinstance(cause, ValueError)
        assert "__init__" in cause.exception_formatted  # type: ignore[attr-defined]


def test_processes_accept_new_actors_after_any_failure(pair: ProcMesh) -> None:
    for fails in range(5):
        with pytest.raises(ActorFailed):
            pair.spawn("bad", Worker, f"time {fails}").initialized.get()
        mesh = pair.spawn("bad", Worker)
        mesh.fail.broadcast()
        with pytest.raises(ActorFailed):
            mesh.add.call().get()
    assert pair.spawn("good", Worker).add.call().get().values() == [1, 1]


def test_an_aborting_actor_replies_first_and_reports_its_reason(proc: ProcMesh) -> None:
    mesh = proc.spawn("worker", Worker)
    assert mesh.abort.call_one("enough").get() == "still answered"
    with pytest.raises(ActorFailed, match="enough"):
        mesh.add.call_one().get()


def test_an_actor_that_stops_itself_has_not_failed(proc: ProcMesh) -> None:
    mesh = proc.spawn("worker", Worker)
    assert mesh.retire.call_one().get() == "still answered"
    with pytest.raises(MeshStopped):
        mesh.add.call_one().get()


def test_every_error_of_a_lost_target_is_a_supervision_error() -> None:
    for kind in (ProcDied, ActorFailed, MeshStopped):
        assert issubclass(kind, SupervisionError)
        assert issubclass(kind, MeshError)
        assert issubclass(kind, RuntimeError)
    assert issubclass(SpawnError, MeshError)
