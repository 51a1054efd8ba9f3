"""Orderly stops, and the limits for stops that do not complete."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import AsyncWorker, Owner, Worker
from whole_program import run

import mesh_core
from mesh_core import (
    Actor,
    ActorFailed,
    DeadlineExceeded,
    MeshStopped,
    ProcDied,
    configured,
    endpoint,
    shutdown_context,
    this_host,
)
from mesh_core._actors.agent import Agent
from mesh_core._runtime.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh

GRACE_S = 0.4


@pytest.fixture
def brisk() -> Iterator[ProcMesh]:
    """Two processes with short timeouts for stopping."""
    with configured(stop_grace_s=GRACE_S, cleanup_timeout_s=GRACE_S):
        procs = this_host().spawn_procs({"n": 2}, name="brisk")
        yield procs
        procs.stop().get()


@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
def test_stop_serves_queued_calls_first(proc: ProcMesh, cls: Any) -> None:
    mesh = proc.spawn("worker", cls)
    mesh.sleep.broadcast(0.1)
    calls = [mesh.add.call_one() for _ in range(5)]
    mesh.stop().get()
    assert [call.get() for call in calls] == [1, 2, 3, 4, 5]


def test_stop_waits_for_concurrent_endpoints(proc: ProcMesh) -> None:
    mesh = proc.spawn("worker", AsyncWorker)
    beside = mesh.sleep_beside.call_one(0.2)
    mesh.stop().get()
    assert beside.get() == 0.2


def test_stop_waits_while_the_queue_makes_progress(brisk: ProcMesh) -> None:
    mesh = brisk.spawn("worker", Worker)
    calls = [mesh.sleep.call(GRACE_S / 2) for _ in range(6)]
    mesh.stop().get()
    assert all(call.exception() is None for call in calls)


def test_stopping_twice_is_the_same_as_once(proc: ProcMesh) -> None:
    mesh = proc.spawn("worker", Worker)
    first, second = mesh.stop(), mesh.stop()
    assert first.get() is None
    assert second.get() is None
    assert mesh.stop().get() is None


def test_threads_that_stop_the_same_processes_all_return(monkeypatch: pytest.MonkeyPatch) -> None:
    procs = this_host().spawn_procs({"procs": 2})
    procs.initialized.get(timeout=30)
    both_sent = threading.Barrier(2)
    note = Runtime.note_stopped

    def note_when_both_sent(*args: Any) -> None:
        both_sent.wait(30)
        note(*args)

    monkeypatch.setattr(Runtime, "note_stopped", note_when_both_sent)
    with ThreadPoolExecutor(2) as pool:
        stops = list(pool.map(lambda _: procs.stop(), range(2)))
    assert [stop.get(timeout=30) for stop in stops] == [None, None]


def test_a_stopped_mesh_refuses_calls_without_other_effects(proc: ProcMesh) -> None:
    mesh = proc.spawn("worker", Worker)
    mesh.stop().get()
    for verb in ("call", "call_one", "choose", "broadcast", "stream"):
        with pytest.raises(MeshStopped, match="worker"):
            getattr(mesh.add, verb)()
    with pytest.raises(MeshStopped):
        mesh.slice().add.call_one().get()
    assert proc.spawn("worker", Worker).add.call_one().get() == 1


def test_stopped_processes_refuse_calls_and_spawns(brisk: ProcMesh) -> None:
    mesh = brisk.spawn("worker", Worker)
    brisk.stop().get()
    assert brisk.stop().get() is None
    with pytest.raises(MeshStopped):
        mesh.add.call().get()
    with pytest.raises(MeshStopped):
        mesh.add.broadcast()
    with pytest.raises(MeshStopped):
        brisk.spawn("worker", Worker)


def test_a_slice_cannot_be_stopped(procs: ProcMesh) -> None:
    mesh = procs.spawn("worker", Worker)
    with pytest.raises(ValueError, match="slice"):
        mesh.slice(gpus=0).stop()
    with pytest.raises(ValueError, match="slice"):
        procs.slice(gpus=0).stop()


class Unloadable:
    """An object that no process can unpickle."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise OSError("cannot be loaded")


class Stranger(Actor):
    @endpoint
    def stop_it(self, mesh: Any) -> None:
        mesh.stop().get()


def test_only_the_owner_can_stop_a_mesh(procs: ProcMesh) -> None:
    mesh = procs.spawn("worker", Worker)
    stranger = procs.slice(gpus=0).spawn("stranger", Stranger)
    for reference in (mesh, procs):
        with pytest.raises(ValueError, match="the actor that owns it"):
            stranger.stop_it.call_one(reference).get()
    assert mesh.add.call().get().values() == [1] * len(procs)


@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
def test_stop_raises_a_cleanup_error(proc: ProcMesh, cls: Any) -> None:
    mesh = proc.spawn("worker", cls, cleanup="raises")
    with pytest.raises(OSError, match="cannot clean up"):
        mesh.stop().get()
    assert proc.spawn("worker", cls).add.call_one().get() == 1


@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
def test_a_hanging_cleanup_times_out(brisk: ProcMesh, cls: Any) -> None:
    mesh = brisk.spawn("worker", cls, cleanup="hangs")
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        mesh.stop().get()
    assert time.monotonic() - started < GRACE_S + 3
    assert brisk.spawn("worker", cls).add.call().get().values() == [1, 1]


@pytest.mark.parametrize(
    ("cls", "name", "args"),
    [
        (Worker, "spin", ()),
        (Worker, "sleep", (1000,)),
        (AsyncWorker, "sleep", (1000,)),
        (AsyncWorker, "plain_spin", ()),
        (AsyncWorker, "plain_sleep", (1000,)),
    ],
)
def test_stop_times_out_for_an_endpoint_that_does_not_return(
    brisk: ProcMesh, cls: Any, name: str, args: tuple[Any, ...]
) -> None:
    mesh = brisk.spawn("worker", cls)
    pending = getattr(mesh, name).call(*args)
    queued = mesh.add.call()
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=name):
        mesh.stop().get()
    assert time.monotonic() - started < 3 * GRACE_S + 30
    for call in (pending, queued):
        with pytest.raises(MeshStopped):
            call.get()
    assert brisk.spawn("worker", cls).add.call().get().values() == [1, 1]


@pytest.mark.parametrize("name", ["spin", "sleep"])
def test_processes_with_an_endpoint_that_does_not_return_are_stopped(
    brisk: ProcMesh, name: str
) -> None:
    mesh = brisk.spawn("worker", Worker)
    pending = getattr(mesh, name).call(*([] if name == "spin" else [1000]))
    started = time.monotonic()
    brisk.stop().get()
    assert time.monotonic() - started < 3 * GRACE_S + 30
    with pytest.raises(MeshStopped):
        pending.get()


def test_stop_kills_an_unresponsive_process(brisk: ProcMesh) -> None:
    pids = brisk.spawn("worker", Worker).pid.call().get().values()
    os.kill(pids[0], signal.SIGSTOP)
    started = time.monotonic()
    brisk.stop().get()
    assert time.monotonic() - started < GRACE_S + 30


class Holder(Worker):
    @endpoint
    def hold(self) -> None:
        """Prevent all other Python code in the process from running."""
        ctypes.PyDLL(None).sleep(1000)


def test_stop_kills_the_process_of_an_actor_that_holds_the_gil(brisk: ProcMesh) -> None:
    holder = brisk.spawn("holder", Holder)
    other = brisk.spawn("other", Worker)
    assert other.add.call().get().values() == [1, 1]
    pending = holder.slice(n=1).hold.call_one()
    started = time.monotonic()
    with pytest.raises(ProcDied, match="no sign of life") as caught:
        holder.stop().get()
    assert time.monotonic() - started < 30
    assert caught.value.rank == 1
    with pytest.raises(ProcDied, match="no sign of life"):
        pending.get()
    assert other.slice(n=0).add.call_one().get() == 2


def test_a_process_in_its_bootstrap_is_not_considered_unresponsive(tmp_path: Path) -> None:
    latch = tmp_path / "latch"
    os.mkfifo(latch)

    def wait_for_gate() -> None:
        latch.read_bytes()

    with configured(stop_grace_s=GRACE_S):
        procs = this_host().spawn_procs({"n": 1}, bootstrap=wait_for_gate)
        stopping = procs.spawn("worker", Worker).stop()
        with pytest.raises(TimeoutError):
            stopping.get(timeout=3)
        latch.write_bytes(b"")
        stopping.get()
        assert procs.spawn("worker", Worker).add.call().get().values() == [1]
        procs.stop().get()


def test_stop_raises_the_failure_of_a_draining_actor(proc: ProcMesh, tmp_path: Path) -> None:
    mesh = proc.spawn("worker", Worker)
    mesh.wait_for.broadcast(str(tmp_path / "stop is under way"))
    mesh.fail.broadcast("on the way")
    stopped = mesh.stop()
    (tmp_path / "stop is under way").touch()
    with pytest.raises(ActorFailed, match="on the way"):
        stopped.get()


def test_stopping_processes_raises_the_failure_of_a_draining_actor(tmp_path: Path) -> None:
    procs = this_host().spawn_procs({"n": 2})
    mesh = procs.spawn("worker", Worker)
    mesh.slice(n=1).wait_for.broadcast(str(tmp_path / "stop is under way"))
    mesh.slice(n=1).fail.broadcast("on the way")
    stopped = procs.stop()
    (tmp_path / "stop is under way").touch()
    with pytest.raises(ActorFailed, match="on the way") as raised:
        stopped.get()
    assert raised.value.rank == 1
    assert procs.stop().exception() is None


def test_an_exception_in_a_with_block_takes_precedence_over_stop_errors() -> None:
    def plain() -> None:
        with this_host().spawn_procs() as procs:
            procs.spawn("worker", Worker).fail.broadcast("on the way")
            raise OSError("of the block")

    with pytest.raises(OSError, match="of the block") as raised:
        plain()
    assert "on the way" in "".join(raised.value.__notes__)

    async def program() -> None:
        async with this_host().spawn_procs() as procs:
            procs.spawn("worker", Worker).fail.broadcast("on the way")
            raise OSError("of the block")

    with pytest.raises(OSError, match="of the block") as raised:
        asyncio.run(program())
    assert "on the way" in "".join(raised.value.__notes__)


def test_a_successful_with_block_raises_the_error_of_its_stop() -> None:
    with pytest.raises(ActorFailed, match="on the way"), this_host().spawn_procs() as procs:
        procs.spawn("worker", Worker).fail.broadcast("on the way")


def hold_news(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Delay failure reports; return the events that mark their arrival and release them."""
    is_told, may_hear = threading.Event(), threading.Event()
    tell = Agent.do_actor_failed

    def tell_late(agent: Agent, *news: Any) -> None:
        is_told.set()
        may_hear.wait(10)
        tell(agent, *news)

    monkeypatch.setattr(Agent, "do_actor_failed", tell_late)
    return is_told, may_hear


def test_stop_raises_a_failure_that_has_not_been_reported_yet(
    proc: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_told, may_hear = hold_news(monkeypatch)
    mesh = proc.spawn("worker", Worker)
    mesh.fail.broadcast("just before")
    assert is_told.wait(10)
    with pytest.raises(ActorFailed, match="just before"):
        mesh.stop().get()
    may_hear.set()


def test_stop_raises_a_spawn_error_that_has_not_been_reported_yet(
    proc: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_told, may_hear = hold_news(monkeypatch)
    mesh = proc.spawn("worker", Worker, Unloadable())
    assert is_told.wait(10)
    with pytest.raises(ActorFailed, match="cannot be loaded"):
        mesh.stop().get()
    may_hear.set()


def test_an_actor_whose_failure_was_raised_is_stopped_without_an_error(proc: ProcMesh) -> None:
    mesh = proc.spawn("worker", Worker)
    mesh.fail.broadcast()
    with pytest.raises(ActorFailed):
        mesh.add.call_one().get()
    assert mesh.stop().get() is None


def test_a_mesh_with_a_dead_rank_is_stopped_without_an_error(brisk: ProcMesh) -> None:
    mesh = brisk.spawn("worker", Worker)
    os.kill(mesh.slice(n=0).pid.call_one().get(), signal.SIGKILL)
    with pytest.raises(ProcDied):
        mesh.add.call().get()
    assert mesh.stop().get() is None


@pytest.mark.parametrize("what", ["this_host()", 'this_host().spawn_procs({"n": 2})'])
def test_leaving_a_with_statement_stops_the_processes(tmp_path: Path, what: str) -> None:
    ended = run(
        tmp_path,
        f"""
        async def use_async():
            async with {what} as mesh:
                return spawn(mesh)
        def use():
            with {what} as mesh:
                return spawn(mesh)
        def spawn(mesh):
            procs = mesh if isinstance(mesh, ProcMesh) else mesh.spawn_procs({{"n": 2}})
            return procs.spawn("worker", Worker).pid.call().get().values()
        for pid in use() + asyncio.run(use_async()):
            assert not os.path.exists(f"/proc/{{pid}}")
        print("all gone")
        """,
    )
    assert ended.out == "all gone\n", ended.err


def test_children_are_cleaned_up_before_their_owner(proc: ProcMesh, tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = proc.spawn("owner", Owner, True, str(log))
    owner.spawn.call_one(proc).get()
    owner.stop().get()
    assert log.read_text().splitlines() == ["cleanup of worker: None", "cleanup of owner: NoneType"]


def test_spawning_after_a_with_block_is_refused(proc: ProcMesh) -> None:
    async def program() -> int:
        async with this_host().spawn_procs({"n": 2}) as procs:
            counts = await procs.spawn("worker", Worker).add.call()
        with pytest.raises(MeshStopped):
            procs.spawn("worker", Worker)
        return sum(counts.values())

    assert asyncio.run(program()) == 2


def test_many_cycles_leak_no_descriptor_and_no_thread(proc: ProcMesh) -> None:
    def cycle() -> None:
        procs = this_host().spawn_procs({"n": 2}, name="cycle")
        mesh = procs.spawn("worker", Worker)
        assert mesh.add.call().get().values() == [1, 1]
        mesh.stop().get()
        procs.stop().get()

    for _ in range(3):
        cycle()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(15):
        cycle()
    after = len(os.listdir("/proc/self/fd")), threading.active_count()
    assert after[0] <= before[0] + 2, os.listdir("/proc/self/fd")
    assert after[1] <= before[1] + 2, threading.enumerate()


def test_mesh_can_be_used_again_after_a_shutdown(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        held = []
        for turn in range(3):
            procs = this_host().spawn_procs({"n": 2})
            mesh = procs.spawn("worker", Worker)
            print(mesh.add.call().get().values())
            held.append((mesh, mesh.sleep.call(60)))
            shutdown_context(host_timeout=0.5).get()
        shutdown_context().get()
        this_host()
        for mesh, call in held:
            try:
                call.get(timeout=20)
            except SupervisionError as error:
                print("call:", type(error).__name__)
            try:
                mesh.add.call().get(timeout=20)
            except SupervisionError as error:
                print("mesh:", type(error).__name__)
        """,
        limit_s=60,
    )
    assert ended.status == 0, ended.err
    assert ended.out.count("[1, 1]") == 3
    assert ended.out.count("call: ") == 3
    assert ended.out.count("mesh: MeshStopped") == 3


def test_shutdown_wakes_waiting_callers(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        mesh = this_host().spawn_procs().spawn("worker", Worker)
        call = mesh.sleep.call_one(60)
        def wait():
            try:
                call.get()
            except SupervisionError as error:
                print("woken:", type(error).__name__)
        thread = threading.Thread(target=wait)
        thread.start()
        shutdown_context(host_timeout=0.5).get()
        thread.join()
        """,
    )
    assert ended.status == 0, ended.err
    assert "woken: " in ended.out


def test_the_shutdown_timeout_must_be_a_finite_non_negative_number() -> None:
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="host_timeout"):
            shutdown_context(wrong)
    assert mesh_core.shutdown_context is shutdown_context
