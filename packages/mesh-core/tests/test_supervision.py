"""Owners: their failure notifications, the effects of their verdicts, and their meshes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import AsyncOwner, AsyncWorker, Owner, Worker, kill_held
from whole_program import run

from mesh_core import ActorFailed, MeshStopped, ProcDied, SupervisionError, this_host, this_proc
from mesh_core.testing import kill_proc, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh


@pytest.fixture
def trio() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs({"n": 3}, name="trio")
    yield procs
    procs.stop().get()


def error_of_end(mesh: Any) -> SupervisionError:
    """Call an actor until it is lost; return the error."""
    found: list[SupervisionError] = []

    def is_lost() -> bool:
        error = mesh.add.call_one().exception()
        if isinstance(error, SupervisionError):
            found.append(error)
        return bool(found)

    wait_until(is_lost)
    return found[0]


@pytest.mark.parametrize("cls", [Owner, AsyncOwner])
def test_the_owner_is_notified_once_with_mesh_rank_and_cause(trio: ProcMesh, cls: Any) -> None:
    owner = trio.slice(n=0).spawn("owner", cls, True)
    child = owner.spawn.call_one(trio.slice(n=slice(1, 3))).get()
    child.slice(n=1).fail.broadcast()
    wait_until(lambda: bool(owner.told.call_one().get()))
    assert owner.told.call_one().get() == [("child", 1, "ActorFailed")]
    assert owner.knows_its_meshes.call_one().get()
    assert child.slice(n=0).add.call_one().get() == 1


def test_an_async_owner_is_notified_while_an_endpoint_runs(trio: ProcMesh) -> None:
    owner = trio.slice(n=0).spawn("owner", AsyncOwner, True)
    child = owner.spawn.call_one(trio.slice(n=1)).get()
    told = owner.wait_until_told.call_one()
    child.fail.broadcast()
    assert told.get() == 1


def test_a_process_death_is_one_failure_even_if_it_affects_many_meshes(trio: ProcMesh) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, True)
    meshes = [owner.spawn.call_one(trio.slice(n=1), f"child {i}").get() for i in range(3)]
    held = kill_held(meshes[0])
    wait_until(lambda: bool(owner.told.call_one().get()))
    for call in (held, *(mesh.add.call_one() for mesh in meshes)):
        with pytest.raises(ProcDied):
            call.get()
    assert owner.told.call_one().get() == [("child 0", 0, "ProcDied")]
    trio.replace(1)


@pytest.mark.parametrize("verdict", [False, None, 0])
def test_an_owner_that_does_not_handle_a_failure_fails_itself(trio: ProcMesh, verdict: Any) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, verdict)
    child = owner.spawn.call_one(trio.slice(n=1)).get()
    child.fail.broadcast("deep down")
    error = error_of_end(owner)
    assert isinstance(error, ActorFailed)
    assert error.mesh_name == "owner"
    cause = error.__cause__
    assert isinstance(cause, ActorFailed)
    assert cause.mesh_name == "child"
    assert isinstance(cause.__cause__, KeyError)
    assert "deep down" in str(cause.__cause__)


def test_an_owner_that_raises_in_supervise_fails_with_both_causes(trio: ProcMesh) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, "raises")
    owner.spawn.call_one(trio.slice(n=1)).get().fail.broadcast("deep down")
    error = error_of_end(owner)
    assert isinstance(error.__cause__, RuntimeError)
    assert "cannot supervise" in str(error.__cause__)
    assert isinstance(error.__cause__.__cause__, ActorFailed)
    assert isinstance(error.__cause__.__cause__.__cause__, KeyError)


def test_a_failure_propagates_up_the_owners_until_one_handles_it(trio: ProcMesh) -> None:
    outer = trio.slice(n=0).spawn("outer", Owner, True)
    inner = outer.spawn_owner.call_one(trio.slice(n=1), False).get()
    child = inner.spawn.call_one(trio.slice(n=2)).get()
    child.fail.broadcast()
    wait_until(lambda: bool(outer.told.call_one().get()))
    assert outer.told.call_one().get() == [("inner", 0, "ActorFailed")]
    with pytest.raises(ActorFailed):
        inner.add.call_one().get()
    assert outer.add.call_one().get() == 1


def test_the_running_endpoint_of_a_failing_owner_is_interrupted(trio: ProcMesh) -> None:
    owner = trio.slice(n=0).spawn("owner", AsyncOwner, False)
    child = owner.spawn.call_one(trio.slice(n=1)).get()
    pending = owner.wait.call_one()
    child.fail.broadcast()
    with pytest.raises(ActorFailed):
        pending.get()


def test_children_of_a_failed_owner_are_stopped_and_cleaned_up_first(
    trio: ProcMesh, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    owner = trio.slice(n=0).spawn("owner", Owner, False, str(log))
    lost = owner.spawn.call_one(trio.slice(n=1), "lost").get()
    kept = owner.spawn.call_one(trio.slice(n=2), "kept").get()
    kept.add.call_one().get()
    lost.fail.broadcast()
    error_of_end(owner)
    assert isinstance(error_of_end(kept), MeshStopped)
    wait_until(lambda: "owner" in log.read_text())
    assert log.read_text().splitlines() == [
        log.read_text().splitlines()[0],
        "cleanup of worker: None",
        "cleanup of owner: ActorFailed",
    ]
    assert "KeyError" in log.read_text().splitlines()[0]


def test_actors_stop_when_the_process_of_their_owner_dies(trio: ProcMesh, tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = trio.slice(n=0).spawn("owner", Owner, True, str(log))
    child = owner.spawn.call_one(trio.slice(n=1)).get()
    child.add.call_one().get()
    held = kill_held(owner)
    assert isinstance(error_of_end(child), MeshStopped)
    wait_until(lambda: log.exists() and log.read_text() == "cleanup of worker: None\n")
    with pytest.raises(ProcDied):
        held.get()


def test_processes_exit_when_their_owner_stops(trio: ProcMesh, tmp_path: Path) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, True, str(tmp_path / "log"))
    _, child = owner.spawn_procs.call_one(2).get()
    pids = child.pid.call().get().values()
    owner.stop().get()
    for pid in pids:
        wait_until(lambda pid=pid: not is_running(pid))
    assert (tmp_path / "log").read_text().splitlines() == [
        "cleanup of worker: None",
        "cleanup of worker: None",
        "cleanup of owner: NoneType",
    ]


def test_processes_exit_when_the_process_of_their_owner_dies(trio: ProcMesh) -> None:
    owner = trio.slice(n=0).spawn("owner", Owner, True)
    _, child = owner.spawn_procs.call_one(2).get()
    pids = child.pid.call().get().values()
    with pytest.raises(ProcDied):
        kill_held(owner).get()
    for pid in pids:
        wait_until(lambda pid=pid: not is_running(pid))


def test_an_actor_in_the_process_of_the_program_can_own_a_mesh(trio: ProcMesh) -> None:
    owner = this_proc().spawn("owner", Owner, True)
    child = owner.spawn.call_one(trio.slice(n=1)).get()
    child.fail.broadcast()
    wait_until(lambda: bool(owner.told.call_one().get()))
    owner.stop().get()
    with pytest.raises(SupervisionError):
        child.add.call_one().get()


def test_a_pending_future_keeps_a_failure_from_ending_the_program(tmp_path: Path) -> None:
    """The failure does not end the program while the result of the call may still be read."""
    ended = run(
        tmp_path,
        """
        from mesh_core.spi import EventStream
        note_failures()
        procs = this_host().spawn_procs({"n": 2})
        mesh = procs.spawn("worker", Worker)
        pids = mesh.pid.call().get().values()
        held = mesh.slice(n=1).sleep.call_one(60)
        with EventStream.subscribe({"proc_died"}) as stream:
            os.kill(pids[1], signal.SIGKILL)
            next(stream.events(timeout=20))
        print(noted_failures())
        try:
            held.get()
        except ProcDied:
            print("caught")
        """,
    )
    assert ended.status == 0, ended.err
    assert ended.out == "[]\ncaught\n"
    assert ended.err == ""


def test_a_failure_held_by_an_unread_future_does_not_end_the_program(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        note_failures()
        mesh = this_host().spawn_procs().spawn("worker", Worker)
        mesh.fail.broadcast()
        held = mesh.add.call()
        print(noted_failures())
        """,
    )
    assert ended.status == 0, ended.err
    assert ended.out == "[]\n"
    assert "Unhandled failure" not in ended.err


def test_a_failure_raised_to_a_caller_does_not_end_the_program(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        note_failures()
        procs = this_host().spawn_procs()
        for turn in range(3):
            mesh = procs.spawn("worker", Worker)
            mesh.fail.broadcast()
            try:
                mesh.add.call_one().get()
            except ActorFailed:
                print("caught")
        print(noted_failures())
        """,
    )
    assert ended.status == 0, ended.err
    assert ended.out == "caught\n" * 3 + "[]\n"


@pytest.mark.parametrize(
    "waiting",
    [
        "time.sleep(60)",
        "asyncio.run(asyncio.sleep(60))",
        "threading.Event().wait()",
        "mesh.slice(n=0).sleep.call_one(60).get()",
        "threading.Thread(target=time.sleep, args=(60,)).start()",
        "exec('while True: pass')",
        "signal.pause()",
    ],
)
def test_an_unhandled_failure_ends_the_program(tmp_path: Path, waiting: str) -> None:
    ended = run(
        tmp_path,
        f"""
        mesh = this_host().spawn_procs({{"n": 2}}).spawn("worker", Worker)
        mesh.add.call().get()
        mesh.slice(n=1).say.call_one("something before").get()
        mesh.slice(n=1).fail.broadcast("of nobody's call")
        {waiting}
        """,
    )
    assert ended.status == 1
    assert ended.seconds < 30
    report = ended.err
    assert report.index("raise KeyError(text)") < report.index("Unhandled failure")
    for fact in ("actor 'Worker'", "'worker'", "rank", "host", "of nobody's call", "Hint:"):
        assert fact in report
    assert report.count("Unhandled failure") == 1


def test_report_of_a_death_names_the_actors_of_the_process(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        procs = this_host().spawn_procs({"n": 2}, name="team")
        procs.spawn("readers", Worker).pid.call().get()
        writers = procs.spawn("writers", Worker)
        writers.slice(n=1).leave.broadcast(3)
        time.sleep(60)
        """,
    )
    assert ended.status == 1
    for name in ("readers", "writers"):
        assert f"actor lost actor 'Worker' of mesh '{name}', rank 1 (n=1)" in ended.err


def test_the_report_of_a_death_contains_the_last_output(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        mesh = this_host().spawn_procs().spawn("worker", Worker)
        mesh.leave.broadcast(9)
        time.sleep(60)
        """,
    )
    assert ended.status == 1
    assert "exited with status 9" in ended.err
    assert "  | last words" in ended.err


def test_an_unhandled_failure_at_exit_sets_the_exit_status(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        import atexit
        atexit.register(print, "what others registered runs as well")
        mesh = this_host().spawn_procs().spawn("worker", Worker)
        mesh.fail.broadcast()
        """,
    )
    assert ended.status == 1
    assert "Unhandled failure" in ended.err
    assert "what others registered" in ended.out


@pytest.mark.parametrize("way", ["mesh_core.unhandled_fault_hook = hook", "set_it(hook)"])
def test_a_hook_can_handle_an_unhandled_failure(tmp_path: Path, way: str) -> None:
    ended = run(
        tmp_path,
        f"""
        from mesh_core._supervision.policy import set_unhandled_fault_hook as set_it
        taken = threading.Event()
        def hook(failure):
            print("taken:", failure.mesh_name, failure.rank, type(failure.error).__name__)
            taken.set()
        {way}
        mesh = this_host().spawn_procs().spawn("worker", Worker)
        mesh.fail.broadcast()
        taken.wait()
        print("goes on")
        """,
    )
    assert ended.status == 0, ended.err
    assert "taken: worker 0 ActorFailed" in ended.out
    assert "goes on" in ended.out


@pytest.mark.parametrize(("raised", "status"), [("SystemExit(42)", 42), ("OSError('hook')", 1)])
def test_hook_that_raises_ends_the_program(tmp_path: Path, raised: str, status: int) -> None:
    ended = run(
        tmp_path,
        f"""
        def hook(failure):
            raise {raised}
        mesh_core.unhandled_fault_hook = hook
        this_host().spawn_procs().spawn("worker", Worker).fail.broadcast()
        time.sleep(60)
        """,
    )
    assert ended.status == status


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_async_worker_can_be_spawned_as_a_child(trio: ProcMesh) -> None:
    mesh = trio.spawn("worker", AsyncWorker)
    assert mesh.add.call().get().values() == [1, 1, 1]


def test_an_owner_is_notified_of_a_death_that_another_owner_saw_in_a_call(trio: ProcMesh) -> None:
    """The program and an actor in its process own actors in the process that dies."""
    mine: Any = trio.spawn("mine", Worker)
    owner: Any = this_proc().spawn("owner", Owner, True)
    owner.spawn.call_one(trio).get()
    for rank in range(3):
        kill_proc(mine, rank, signal.SIGKILL)
        error_of_end(mine.slice(n=rank))
        trio.replace(rank)
        wait_until(lambda count=rank + 1: len(owner.told.call_one().get()) == count)
    assert owner.told.call_one().get() == [("child", rank, "ProcDied") for rank in range(3)]
    assert owner.knows_its_meshes.call_one().get()
    owner.stop().get()
