"""Services that lose replicas: errors of callers, replacement, and giving up."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from host_recorder import wait_until_gone
from service_actors import Caller, Holder, Unstartable, Worker

from mesh_core import (
    Actor,
    ActorFailed,
    MeshFailure,
    ProcDied,
    SupervisionError,
    endpoint,
    this_host,
)
from mesh_core.services import HealthCheck, Service, SessionMoved
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_core import ProcMesh


def is_whole(service: Service[Any]) -> bool:
    status = service.status().get()
    return status.num_ready == status.num_replicas == len(status.replicas)


def kill_one(service: Service[Any]) -> int:
    """Kill the process of the oldest replica."""
    pid: int = service.status().get().replicas[0].mesh.pid.call().get().values()[0]
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_lost_replica_is_replaced_and_calls_continue(proc: ProcMesh) -> None:
    with Service.options(num_replicas=2).spawn("workers", Worker) as service:
        service.initialized.get()
        pid = kill_one(service)
        wait_until(lambda: service.status().get().losses == 1 and is_whole(service))
        pids = service.handle.pid.fanout().get().values()
        assert pid not in pids
        assert len(set(pids)) == 2
        assert "SIGKILL" in service.status().get().last_error
        # This includes a process that never knew the previous replica.
        caller = proc.spawn("caller", Caller, service.handle)
        assert set(caller.pids.call_one(8).get()) == set(pids)
        caller.stop().get()


def test_a_running_call_of_a_lost_replica_fails_and_is_not_retried(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with Service.options(num_replicas=2).spawn("workers", Worker) as service:
        service.initialized.get()
        pending = [service.handle.append_to.route(notes, str(n), 30.0) for n in range(2)]
        wait_until(lambda: notes.exists() and len(notes.read_text().split()) == 2)
        begun = time.monotonic()
        for replica in service.status().get().replicas:
            os.kill(_pid_of(replica.mesh), signal.SIGKILL)
        for answer in pending:
            with pytest.raises(ProcDied, match="append_to") as died:
                answer.get()
            assert died.value.signal == signal.SIGKILL
        assert time.monotonic() - begun < 25
        assert service.handle.double.route(2).get() == 4
        assert sorted(notes.read_text().split()) == ["0", "1"]


def _pid_of(mesh: Any) -> int:
    from mesh_core.testing import proc_pid

    return proc_pid(mesh)


def test_retryable_calls_survive_kills_under_load() -> None:
    options = Service.options(num_replicas=3, retries={"double": 3}, outstanding_max=8)

    async def load(service: Service[Worker]) -> None:
        workers = service.handle

        async def client(first: int) -> list[int]:
            return [await workers.double.route(n, 0.002) for n in range(first, first + 40)]

        clients = [asyncio.create_task(client(100 * n)) for n in range(12)]
        for losses in (1, 2, 3):
            status = await service.status()
            ready = [replica for replica in status.replicas if replica.state == "ready"]
            os.kill(await asyncio.to_thread(_pid_of, ready[0].mesh), signal.SIGKILL)
            while (await service.status()).losses < losses:
                await workers.double.route(0)
        for first, answers in zip(range(0, 1200, 100), await asyncio.gather(*clients), strict=True):
            assert answers == [2 * n for n in range(first, first + 40)]

    with options.spawn("workers", Worker) as service:
        service.initialized.get()
        asyncio.run(load(service))
        service.settled().get(timeout=20)
        assert is_whole(service)


def test_every_call_completes_when_all_replicas_die_repeatedly() -> None:
    options = Service.options(num_replicas=2, replacements_max=100)
    with options.spawn("workers", Worker) as service:
        service.initialized.get()
        outcomes = []
        for _ in range(4):
            pending = [service.handle.double.route(n, 0.01) for n in range(20)]
            service.handle.die.broadcast()
            outcomes += [answer.exception(timeout=30) for answer in pending]
        assert all(one is None or isinstance(one, SupervisionError) for one in outcomes)
        wait_until(lambda: service.handle.double.route(3).exception() is None)


def test_session_sticks_to_a_replica_and_sessions_are_spread() -> None:
    with Service.options(num_replicas=3).spawn("workers", Worker) as service:
        service.initialized.get()
        with service.session() as a, service.session() as b, service.session() as c:
            for word in ("one", "two", "three"):
                a.remember.route(word).get()
                service.handle.remember.route("noise").get()
            assert [w for w in a.remember.route("end").get() if w != "noise"] == [
                "one",
                "two",
                "three",
                "end",
            ]
            pids = [session.pid.route().get() for session in (a, b, c)]
            assert len(set(pids)) == 3
            assert [session.pid.route().get() for session in (a, b, c)] == pids
            with pytest.raises(TypeError, match="cannot be sent to another process"):
                a.__reduce__()


def test_a_session_is_notified_once_that_it_has_moved() -> None:
    with Service.options(num_replicas=2).spawn("workers", Worker) as service:
        service.initialized.get()
        session = service.session()
        with session as s:
            pid, before = s.pid.route().get(), session.replica
            waiting = s.double.route(1, 30.0)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(SessionMoved) as moved:
                waiting.get()
            assert moved.value.replica == before
            assert isinstance(moved.value.__cause__, ProcDied)
            assert s.pid.route().get() != pid
            assert s.pid.route().get() == s.pid.route().get()
            assert session.replica != before


def test_an_idle_session_is_notified_of_its_move_at_the_next_call() -> None:
    with Service.options(num_replicas=2).spawn("workers", Worker) as service:
        service.initialized.get()
        with service.session() as told, service.session(on_move="ignore") as untold:
            pids = told.pid.route().get(), untold.pid.route().get()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: service.status().get().losses == 2 and is_whole(service))
            with pytest.raises(SessionMoved) as moved:
                told.remember.route("lost").get()
            assert isinstance(moved.value.__cause__, ProcDied)
            assert told.remember.route("new").get() == ["new"]
            assert untold.pid.route().get() not in pids


def test_replica_that_fails_its_health_check_is_replaced() -> None:
    check = HealthCheck("check", period_s=0.05, timeout_s=5.0, failures_max=2)
    with Service.options(num_replicas=2, health_check=check).spawn("h", Holder) as service:
        service.initialized.get()
        with service.session() as s:
            pid = s.pid.route().get()
            s.fall_ill.route().get()
        wait_until(lambda: service.status().get().losses == 1 and is_whole(service))
        assert pid not in service.handle.pid.fanout().get().values()
        assert "not well" in service.status().get().last_error


def test_a_hanging_replica_is_killed_and_its_calls_fail() -> None:
    check = HealthCheck("check", period_s=0.05, timeout_s=0.3, failures_max=1)
    with Service.options(num_replicas=2, health_check=check).spawn("h", Holder) as service:
        service.initialized.get()
        with service.session() as s:
            pid = s.pid.route().get()
            waiting = s.hang.route()
            with pytest.raises(SessionMoved):
                waiting.get(timeout=20)
        wait_until_gone([pid])
        wait_until(lambda: is_whole(service))


def test_the_death_of_one_process_removes_the_whole_replica() -> None:
    with Service.options(procs={"tp": 2}).spawn("pairs", Worker) as service:
        service.initialized.get()
        pids = service.handle.pid.call().get().values()
        waiting = service.handle.double.route(1, 30.0)
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(SupervisionError):
            waiting.get(timeout=20)
        wait_until_gone(pids)
        assert not set(pids) & set(service.handle.pid.call().get().values())


class Latest(Actor):
    """The object that a setup function passes to new replicas."""

    def __init__(self) -> None:
        self.version = 0

    @endpoint
    def load(self, version: int) -> None:
        self.version = version

    @endpoint
    def loaded(self) -> int:
        return self.version


def test_setup_runs_for_every_new_replica() -> None:
    async def setup(replica: Latest) -> None:
        await replica.load.call(7)

    with Service.options(num_replicas=2, setup=setup).spawn("latest", Latest) as service:
        service.initialized.get()
        assert service.handle.loaded.fanout().get().values() == [7, 7]
        mesh = service.status().get().replicas[0].mesh
        os.kill(_pid_of(mesh), signal.SIGKILL)
        wait_until(lambda: service.status().get().losses == 1 and is_whole(service))
        assert service.handle.loaded.fanout().get().values() == [7, 7]


class Watcher(Actor):
    """Owns a service that fails."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        options = Service.options(num_replicas=1, replacements_max=2)
        self.service = options.spawn("fragile", Worker)

    @endpoint
    async def wear_out(self) -> str:
        deaths = 0
        while True:
            try:
                await self.service.handle.die.route()
            except ProcDied:
                deaths += 1
            except ActorFailed as failed:
                return f"{deaths}: {type(failed.__cause__).__name__}"

    @endpoint
    def told(self) -> list[str]:
        return self.heard

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.heard.append(failure.mesh_name)
        return True


def test_a_service_that_loses_too_many_replicas_fails_and_notifies_its_owner() -> None:
    procs = this_host().spawn_procs()
    watcher = procs.spawn("watcher", Watcher)
    assert watcher.wear_out.call_one().get() == "3: ProcDied"
    wait_until(lambda: watcher.told.call_one().get() == ["fragile"])
    watcher.stop().get()
    procs.stop().get()


def test_a_failed_update_keeps_the_old_replicas() -> None:
    with Service.options(num_replicas=2).spawn("workers", Worker) as service:
        service.initialized.get()
        pids = service.handle.pid.fanout().get().values()
        with pytest.raises(ValueError, match="no endpoint 'append_to'"):
            service.update(Unstartable)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cannot greet"):
            service.update(Mute).get()
        assert service.handle.pid.fanout().get().values() == pids
        assert service.status().get().losses == 0


class Mute(Worker):
    """Cannot be created."""

    def __init__(self) -> None:
        raise ValueError("cannot greet")
