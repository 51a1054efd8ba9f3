"""Restart policies: the ranks that are restarted after each kind of end, and the limits."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import AsyncWorker, Owner, Worker
from whole_program import run

from mesh_core import (
    ActorFailed,
    ActorMesh,
    ProcDied,
    RestartPolicy,
    SupervisionError,
    this_host,
)
from mesh_core.spi import EventStream
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mesh_core import ProcMesh


@pytest.fixture
def trio() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs({"n": 3}, name="trio")
    yield procs
    procs.stop().get()


def answer(mesh: Any) -> Any:
    """Call until a reply arrives: a rank that is being restarted rejects calls briefly."""
    found: list[Any] = []

    def is_there() -> bool:
        try:
            found.append(mesh.add.call_one().get(timeout=10))
        except SupervisionError:
            return False
        return True

    wait_until(is_there)
    return found[0]


def kill(mesh: Any) -> None:
    os.kill(mesh.pid.call_one().get(), signal.SIGKILL)
    while not isinstance(mesh.pid.call_one().exception(), ProcDied):
        pass


@pytest.mark.parametrize("restart", ["permanent", "transient"])
@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
def test_a_failed_actor_is_restarted_with_fresh_state(
    trio: ProcMesh, cls: Any, restart: str
) -> None:
    mesh = trio.spawn("worker", cls, restart=restart)
    mesh.add.call(5).get()
    pid = mesh.slice(n=1).pid.call_one().get()
    mesh.slice(n=1).fail.broadcast()
    wait_until(lambda: answer(mesh.slice(n=1)) < 5)
    assert mesh.slice(n=1).pid.call_one().get() == pid
    assert mesh.slice(n=0).add.call_one(0).get() == 5
    assert mesh.slice(n=2).add.call_one(0).get() == 5


def test_an_actor_is_restarted_in_a_new_process_after_a_death(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker, restart="permanent")
    mesh.add.call(5).get()
    one = mesh.slice(n=1)
    pid = one.pid.call_one().get()
    pending = one.sleep.call_one(60)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcDied):
        pending.get()
    assert answer(one) == 1
    assert one.pid.call_one().get() != pid
    assert mesh.slice(n=0).add.call_one(0).get() == 5


def test_all_meshes_with_a_policy_are_restarted_after_a_process_death(trio: ProcMesh) -> None:
    meshes = [trio.spawn(f"worker {i}", Worker, restart="permanent") for i in range(3)]
    pid = meshes[0].slice(n=1).pid.call_one().get()
    os.kill(pid, signal.SIGKILL)
    for mesh in meshes:
        assert answer(mesh.slice(n=1)) == 1
    pids = {mesh.slice(n=1).pid.call_one().get() for mesh in meshes}
    assert len(pids) == 1
    assert pids != {pid}


def test_one_for_all_restarts_healthy_ranks_as_well(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker, restart=RestartPolicy(scope="one_for_all"))
    other = trio.spawn("other", Worker)
    mesh.add.call(5).get()
    other.add.call(5).get()
    pids = mesh.pid.call().get().values()
    mesh.slice(n=1).fail.broadcast()
    for rank in range(3):
        wait_until(lambda rank=rank: answer(mesh.slice(n=rank)) < 5)
    assert mesh.pid.call().get().values() == pids
    assert other.add.call(0).get().values() == [5, 5, 5]


def test_one_for_all_interrupts_running_calls_of_healthy_ranks(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", Worker, restart=RestartPolicy(scope="one_for_all"))
    mesh.add.call(5).get()
    busy = mesh.slice(n=0).spin.call_one()
    mesh.slice(n=1).fail.broadcast()
    with pytest.raises(SupervisionError):
        busy.get(timeout=20)
    wait_until(lambda: answer(mesh.slice(n=0)) < 5)


def test_a_permanent_actor_is_restarted_after_it_stops_itself(trio: ProcMesh) -> None:
    mesh = trio.slice(n=0).spawn("worker", Worker, restart="permanent")
    mesh.add.call_one(5).get()
    mesh.retire.call_one().get()
    wait_until(lambda: answer(mesh) < 5)


@pytest.mark.parametrize("restart", ["transient", "temporary", None])
def test_a_non_permanent_actor_is_not_restarted_after_it_stops_itself(
    trio: ProcMesh, restart: Any
) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, True)
    mesh = owner.spawn.call_one(trio.slice(n=1), restart=restart).get()
    mesh.retire.call_one().get()
    with pytest.raises(SupervisionError):
        mesh.add.call_one().get()
    assert owner.told.call_one().get() == []


def test_a_temporary_actor_is_not_restarted_and_its_failure_is_reported(trio: ProcMesh) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, True)
    mesh = owner.spawn.call_one(trio.slice(n=1), restart="temporary").get()
    mesh.fail.broadcast()
    wait_until(lambda: bool(owner.told.call_one().get()))
    with pytest.raises(ActorFailed):
        mesh.add.call_one().get()


@pytest.mark.parametrize("how", ["actor", "process"])
def test_an_owner_in_another_process_restarts_its_actors(trio: ProcMesh, how: str) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, True)
    mesh = owner.spawn.call_one(trio.slice(n=1), restart="permanent").get()
    assert mesh.add.call_one(5).get() == 5
    if how == "actor":
        mesh.fail.broadcast()
    else:
        kill(mesh)
    wait_until(lambda: answer(mesh) < 5)
    assert owner.told.call_one().get() == []


def test_only_actors_that_are_not_restarted_are_reported_to_the_owner(
    trio: ProcMesh,
) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, True)
    kept = owner.spawn.call_one(trio.slice(n=1), "kept", "permanent").get()
    lost = owner.spawn.call_one(trio.slice(n=1), "lost").get()
    assert lost.add.call_one().get() == 1
    kept.add.call_one(5).get()
    kill(kept)
    wait_until(lambda: answer(kept) < 5)
    wait_until(lambda: bool(owner.told.call_one().get()))
    assert owner.told.call_one().get() == [("lost", 0, "ProcDied")]


def test_exceeding_the_restart_limit_is_reported_to_the_owner(trio: ProcMesh) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, True)
    policy = RestartPolicy("permanent", intensity_max=2, period_s=60)
    mesh = owner.spawn.call_one(trio.slice(n=1), restart=policy).get()
    for _ in range(3):
        answer(mesh)
        mesh.fail.broadcast()
        while not isinstance(mesh.add.call_one().exception(), ActorFailed):
            pass
    wait_until(lambda: bool(owner.told.call_one().get()))
    assert owner.told.call_one().get() == [("child", 0, "ActorFailed")]


def test_a_failure_just_after_a_restart_causes_another_restart(
    trio: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds if the program has not yet observed that the restart succeeded."""
    may_look = threading.Event()
    restart = ActorMesh._restart_rank

    class LateFuture:
        """A future that wakes its waiter late."""

        def __init__(self, future: Any) -> None:
            self.future = future
            self.done = future.done
            self.waiting = iter([may_look])

        def exception(self) -> BaseException | None:
            for event in self.waiting:
                assert event.wait(20)
            error: BaseException | None = self.future.exception()
            return error

    monkeypatch.setattr(
        ActorMesh, "_restart_rank", lambda mesh, rank: LateFuture(restart(mesh, rank))
    )
    mesh = trio.slice(n=0).spawn("worker", Worker, restart="permanent")
    mesh.fail.broadcast()
    assert answer(mesh) == 1
    with EventStream.subscribe({"restarted"}) as stream:
        restarts = stream.events(timeout=20)
        mesh.fail.broadcast()
        assert next(restarts).code == 0
        may_look.set()
        assert next(restarts).code == 0
    assert answer(mesh) == 1


def test_an_init_that_fails_once_is_retried(trio: ProcMesh, tmp_path: Path) -> None:
    mesh = trio.slice(n=0).spawn(
        "worker", Worker, "once", log=str(tmp_path / "log"), restart="permanent"
    )
    assert answer(mesh) == 1


def test_an_init_that_always_fails_is_not_retried_forever(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        this_host().spawn_procs().spawn("worker", Worker, True, restart="permanent")
        time.sleep(60)
        """,
    )
    assert ended.status == 1
    assert "cannot begin" in ended.err


def test_a_program_exits_cleanly_after_a_restart(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        from mesh_core.spi import EventStream
        mesh = this_host().spawn_procs({"n": 2}).spawn("worker", Worker, restart="permanent")
        with EventStream.subscribe({"restarted"}) as stream:
            kill(mesh.slice(n=1))
            print(next(stream.events(timeout=20)).rank)
        print(mesh.add.call().get().values())
        """,
    )
    assert ended.status == 0, ended.err
    assert ended.out == "1\n[1, 1]\n"
    assert ended.err == ""


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RestartPolicy("sometimes"),
        lambda: RestartPolicy(scope="one_for_none"),
        lambda: RestartPolicy(intensity_max=-1),
        lambda: RestartPolicy(period_s=0),
    ],
)
def test_a_policy_refuses_invalid_values(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"restart|scope|intensity_max"):
        wrong()


def test_spawn_refuses_an_unknown_policy(proc: ProcMesh) -> None:
    with pytest.raises(ValueError, match="sometimes"):
        proc.spawn("worker", Worker, restart="sometimes")
