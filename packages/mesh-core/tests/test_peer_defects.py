"""The known defects of the peer, each as a test that Mesh passes; the names describe the defects.

Other files test those about several hosts, TLS, the debugger and the size of wheels.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import AsyncWorker, Owner, Worker, kill_held
from whole_program import run

import mesh_core
from mesh_core import (
    Actor,
    ActorError,
    ActorFailed,
    Channel,
    DeadlockError,
    MailboxFull,
    MeshStopped,
    NoReply,
    Port,
    ProcDied,
    SupervisionError,
    endpoint,
    this_host,
)
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mesh_core import ProcMesh


@pytest.fixture
def pair() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs({"n": 2}, name="pair")
    yield procs
    procs.stop().get()


def test_defect_01_a_death_is_noticed_long_before_ten_seconds() -> None:
    took = []
    with this_host().spawn_procs({"n": 8}) as procs:
        mesh = procs.spawn("worker", Worker)
        pids = mesh.pid.call().get().values()
        for rank, pid in enumerate(pids):
            pending = mesh.slice(n=rank).sleep.call_one(60)
            started = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(ProcDied):
                pending.get()
            took.append(time.perf_counter() - started)
    assert statistics.median(took) < 5, took


def test_defect_02_processes_are_never_poisoned_and_ranks_can_be_replaced(pair: ProcMesh) -> None:
    for kind in (Worker, AsyncWorker):
        mesh = pair.spawn("fails", kind)
        mesh.fail.broadcast()
        with pytest.raises(ActorFailed):
            mesh.add.call().get()
        mesh.replace(0)
        assert mesh.slice(n=0).add.call_one().get() == 1
    assert pair.spawn("good", Worker).add.call().get().values() == [1, 1]


def test_defect_03_using_a_stopped_mesh_raises_and_has_no_other_effect(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        note_failures()
        procs = this_host().spawn_procs({"n": 2})
        mesh = procs.spawn("worker", Worker)
        mesh.stop().get()
        for _ in range(3):
            try:
                mesh.add.call().get()
            except MeshStopped:
                print("told")
        procs.stop().get()
        try:
            mesh.add.broadcast()
        except MeshStopped:
            print("told")
        print("late:", noted_failures())
        """,
    )
    assert ended.status == 0
    assert ended.out == "told\n" * 4 + "late: []\n"
    assert ended.err == ""


def test_defect_05_stop_drains_as_the_documentation_says(pair: ProcMesh) -> None:
    mesh = pair.spawn("worker", Worker)
    calls = [mesh.add.call() for _ in range(3)]
    mesh.stop().get()
    assert [call.get().values() for call in calls] == [[1, 1], [2, 2], [3, 3]]


def test_defect_05_cleanup_errors_are_reported(pair: ProcMesh) -> None:
    with pytest.raises(OSError, match="cannot clean up"):
        pair.spawn("worker", Worker, cleanup="raises").stop().get()


def test_defect_05_configure_overrides_the_environment(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        "configure(log_tail_lines=7); print(Config.current().log_tail_lines)",
        env={"MESH_LOG_TAIL_LINES": "9"},
    )
    assert ended.out == "7\n", ended.err


def test_defect_06_errors_are_public_and_have_fields(pair: ProcMesh) -> None:
    mesh = pair.spawn("worker", Worker)
    with pytest.raises(SupervisionError) as caught:
        mesh.slice(n=1).leave.call_one(4).get()
    error = caught.value
    assert (error.rank, error.exit_code, error.mesh_name) == (1, 4, "worker")
    assert "panicked" not in str(error)
    assert "rust" not in str(error).lower()


def test_defect_06_remote_exceptions_are_caught_by_their_own_type(pair: ProcMesh) -> None:
    with pytest.raises(KeyError) as caught:
        pair.spawn("worker", Worker).fail.call().get()
    assert isinstance(caught.value, ActorError)


def test_defect_06_a_failure_identifies_its_mesh_and_shows_no_internal_actor(
    pair: ProcMesh,
) -> None:
    owner = pair.slice(n=0).spawn("owner", Owner, True)
    child = owner.spawn.call_one(pair.slice(n=1)).get()
    with pytest.raises(ProcDied):
        kill_held(child).get()
    # Caller and owner are notified of a death at different times.
    told = wait_until(lambda: owner.told.call_one().get())
    assert told == [("child", 0, "ProcDied")]
    assert owner.knows_its_meshes.call_one().get()


def test_defect_08_sync_and_async_endpoints_in_one_class(pair: ProcMesh) -> None:
    class Both(Actor):
        async def __init__(self) -> None:  # type: ignore[misc]
            await asyncio.sleep(0)
            self.n = 1

        @endpoint
        def plain(self) -> int:
            return self.n

        @endpoint
        async def awaited(self) -> int:
            return self.n

        def __cleanup__(self, error: Exception | None) -> None: ...

    mesh = pair.spawn("both", Both)
    assert mesh.plain.call().get().values() == [1, 1]
    assert mesh.awaited.call().get().values() == [1, 1]


def test_defect_08_deadlock_is_detected_and_named(pair: ProcMesh) -> None:
    class Selfish(Actor):
        @endpoint
        def ask(self, mesh: Any) -> None:
            mesh.answer.call_one().get()

        @endpoint
        def answer(self) -> None: ...

    mesh = pair.slice(n=0).spawn("selfish", Selfish)
    with pytest.raises(DeadlockError, match="selfish"):
        mesh.ask.call_one(mesh).get()


class Ported(Actor):
    @endpoint(explicit_response_port=True)
    def twice(self, port: Port[int]) -> None:
        port.send(1)
        port.send(2)

    @endpoint(explicit_response_port=True)
    def never(self, port: Port[int]) -> None: ...

    @endpoint
    def keep(self, port: Port[int]) -> None:
        self.port = port

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def test_defect_09_a_second_reply_on_a_port_is_ignored(pair: ProcMesh) -> None:
    mesh = pair.spawn("ported", Ported)
    assert mesh.twice.call().get().values() == [1, 1]
    assert mesh.twice.call().get().values() == [1, 1]


def test_defect_09_a_missing_reply_is_an_error_for_the_caller(pair: ProcMesh) -> None:
    with pytest.raises(NoReply):
        pair.slice(n=0).spawn("ported", Ported).never.call_one().get()


def test_defect_09_a_receiver_fails_when_the_holder_of_its_port_dies(pair: ProcMesh) -> None:
    mesh = pair.slice(n=0).spawn("ported", Ported)
    port, receiver = Channel[int].open()
    mesh.keep.call_one(port).get()
    pid = mesh.pid.call_one().get()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcDied):
        receiver.recv().get(timeout=20)
    with pytest.raises(ProcDied):
        mesh.pid.call_one().get()


def test_defect_10_deadlines_reach_the_callee(pair: ProcMesh) -> None:
    mesh = pair.slice(n=0).spawn("worker", Worker)
    with pytest.raises(TimeoutError):
        mesh.spin.options(timeout=0.2).call_one().get()
    assert mesh.add.call_one().get() == 1


async def test_defect_10_queues_are_bounded(pair: ProcMesh) -> None:
    mesh = pair.slice(n=0).spawn("worker", AsyncWorker, mailbox_len_max=4)
    mesh.sleep.broadcast(0.5)
    with pytest.raises(MailboxFull):
        [mesh.add.broadcast() for _ in range(100)]


def test_defect_11_reserved_names_are_refused_before_anything_is_spawned(pair: ProcMesh) -> None:
    class Bad(Actor):
        @endpoint
        def stop(self) -> None: ...  # type: ignore[override]

    with pytest.raises(ValueError, match="'stop'"):
        pair.spawn("bad", Bad)


def test_defect_12_slices_of_all_kinds_can_be_called() -> None:
    with this_host().spawn_procs({"x": 2, "y": 2, "z": 3}) as procs:
        mesh = procs.spawn("worker", Worker)
        part = mesh.slice(y=-1, z=slice(None, None, -2))
        assert part.sizes == {"x": 2, "z": 2}
        assert part.add.call().get().values() == [1] * 4
        assert part.flatten("all").slice(all=[0, 3]).add.call().get().values() == [2, 2]
        assert mesh.slice(x=0) == mesh.slice(x=0)
        assert len({mesh.slice(x=0), mesh.slice(x=0)}) == 1


def test_defect_13_processes_start_within_seconds() -> None:
    started = time.monotonic()
    with this_host().spawn_procs({"n": 8}) as procs:
        procs.spawn("worker", Worker).add.call().get()
    assert time.monotonic() - started < 30


def test_defect_14_mesh_works_after_a_shutdown_and_hooks_can_be_assigned(
    tmp_path: Path,
) -> None:
    ended = run(
        tmp_path,
        """
        told = queue.SimpleQueue()
        mesh_core.unhandled_fault_hook = lambda failure: told.put(failure.mesh_name)
        for _ in range(2):
            mesh = this_host().spawn_procs().spawn("worker", Worker)
            mesh.fail.broadcast()
            print("hook:", told.get(timeout=20))
            shutdown_context().get()
        """,
    )
    assert ended.status == 0, ended.err
    assert ended.out == "hook: worker\nhook: worker\n"


def test_defect_14_the_logging_module_is_not_patched() -> None:
    import logging

    assert logging.Logger.addHandler.__module__ == "logging"


def test_defect_15_logs_are_forwarded_by_default_without_merging_numbers(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        mesh = this_host().spawn_procs({"n": 2}).spawn("worker", Worker)
        for rank in range(2):
            mesh.slice(n=rank).say.call_one(*[f"step {n} of {rank}" for n in range(20)]).get()
        """,
    )
    lines = [line.partition("] ")[2] for line in ended.out.splitlines()]
    assert sorted(lines) == sorted(f"step {n} of {rank}" for n in range(20) for rank in range(2))


def test_defect_18_mesh_can_be_used_repeatedly_in_one_interpreter() -> None:
    """All of these tests run in one process; this test only states it."""
    assert mesh_core.__name__ == "mesh_core"


def test_further_defect_one_death_is_reported_once_to_an_owner(pair: ProcMesh) -> None:
    owner = pair.slice(n=0).spawn("owner", Owner, True)
    children = [owner.spawn.call_one(pair.slice(n=1), name).get() for name in "abc"]
    held = kill_held(children[0])
    wait_until(lambda: owner.told.call_one().get())
    for call in (held, *(child.add.call_one() for child in children)):
        with pytest.raises(ProcDied):
            call.get()
    assert len(owner.told.call_one().get()) == 1


class Picky(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


class Raiser(Actor):
    @endpoint
    async def picky(self) -> None:
        raise Picky(1, 2)

    @endpoint
    async def cancelled(self) -> None:
        raise asyncio.CancelledError

    @endpoint
    async def exits(self) -> None:
        raise SystemExit(1)

    @endpoint
    async def fine(self) -> int:
        return 1


@pytest.mark.parametrize("name", ["picky", "cancelled", "exits"])
def test_further_defect_any_exception_can_be_sent_to_the_caller(pair: ProcMesh, name: str) -> None:
    mesh = pair.slice(n=0).spawn("raiser", Raiser)
    with pytest.raises(ActorError) as caught:
        getattr(mesh, name).call_one().get()
    if name == "picky":
        assert isinstance(caught.value, Picky)
        assert "1 and 2" in str(caught.value)
    assert mesh.fine.call_one().get() == 1


def test_further_defect_children_are_cleaned_up_first_when_the_program_exits(
    tmp_path: Path,
) -> None:
    # Printed lines of two processes have no defined order, unlike lines in a file.
    log = tmp_path / "log"
    ended = run(
        tmp_path,
        f"""
        def note(line):
            with open("{log}", "a") as log:
                print(line, file=log)
        class Child(Worker):
            def __cleanup__(self, error):
                note("child")
        class Parent(Worker):
            @endpoint
            def begin(self, procs):
                procs.spawn("child", Child).add.call_one().get()
            def __cleanup__(self, error):
                note("parent")
        procs = this_host().spawn_procs({{"n": 2}})
        procs.slice(n=0).spawn("parent", Parent).begin.call_one(procs.slice(n=1)).get()
        """,
    )
    assert ended.status == 0, ended.err
    assert log.read_text() == "child\nparent\n"


def test_further_defect_an_unhandled_failure_interrupts_a_sleeping_program(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        this_host().spawn_procs().spawn("worker", Worker).fail.broadcast()
        time.sleep(1000)
        """,
    )
    assert ended.status == 1
    assert ended.seconds < 30


def test_further_defect_sixty_four_processes_start_on_a_loaded_machine(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        import multiprocessing
        busy = [multiprocessing.Process(target=exec, args=("while True: pass",), daemon=True)
                for _ in range(4)]
        for process in busy:
            process.start()
        mesh = this_host().spawn_procs({"n": 64}).spawn("worker", Worker)
        print(sum(mesh.add.call().get().values()))
        """,
        limit_s=50,
    )
    assert ended.status == 0, ended.err
    assert "64" in ended.out


def test_further_defect_a_second_stop_succeeds_and_stopping_a_slice_fails(pair: ProcMesh) -> None:
    mesh = pair.spawn("worker", Worker)
    with pytest.raises(ValueError, match="slice"):
        mesh.slice(n=0).stop()
    mesh.stop().get()
    assert mesh.stop().get() is None
    with pytest.raises(MeshStopped):
        mesh.add.call().get()
