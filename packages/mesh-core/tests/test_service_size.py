"""Services that grow, shrink and are updated while they are called."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from host_recorder import wait_until_gone
from service_actors import Caller, Holder, Worker

from mesh_core import MeshStopped
from mesh_core._services.scaling import Intensity, Scaler
from mesh_core.services import Autoscale, Service, SessionMoved
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mesh_core import ProcMesh


class Load:
    """Calls a service continuously from several threads; each call is recorded."""

    def __init__(self, workers: Worker, notes: Path) -> None:
        self._workers = workers
        self._notes = notes
        self._is_over = threading.Event()
        self.made: list[str] = []
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(6)]

    def _call(self, thread: int) -> None:
        count = 0
        while not self._is_over.is_set():
            count += 1
            line = f"{thread}.{count}"
            try:
                assert self._workers.append_to.route(self._notes, line, 0.003).get() == line
                self.made.append(line)
            except BaseException as error:
                self.errors.append(error)

    def wait_for(self, count: int) -> None:
        """Wait for this number of further replies."""
        goal = len(self.made) + count
        wait_until(lambda: len(self.made) >= goal or self.errors, 30)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Check that every call was served exactly once and received a reply."""
        assert self.errors == []
        assert sorted(self._notes.read_text().split()) == sorted(self.made)


@pytest.fixture
def service() -> Iterator[Service[Worker]]:
    with Service.options(num_replicas=2).spawn("workers", Worker, "old") as service:
        service.initialized.get()
        yield service


def test_no_call_is_lost_or_executed_twice_during_a_resize(
    service: Service[Worker], tmp_path: Path
) -> None:
    with Load(service.handle, tmp_path / "notes") as load:
        for size in (4, 1, 3, 1):
            load.wait_for(30)
            service.resize(size).get()
            assert service.status().get().num_ready == size
        load.wait_for(30)
    load.check()


def test_no_call_is_lost_or_executed_twice_during_an_update(
    service: Service[Worker], tmp_path: Path
) -> None:
    pids = service.handle.pid.fanout().get().values()
    with Load(service.handle, tmp_path / "notes") as load:
        load.wait_for(30)
        service.update(Worker, "new").get()
        load.wait_for(30)
    load.check()
    assert service.handle.greet.fanout("you").get().values() == ["new you"] * 2
    wait_until_gone(pids)
    assert service.status().get().generation == 1


def test_a_caller_that_was_idle_during_updates_reaches_the_new_replicas(
    service: Service[Worker], proc: ProcMesh
) -> None:
    caller = proc.spawn("caller", Caller, service.handle)
    assert len(set(caller.pids.call_one(4).get())) == 2
    wait_until(lambda: service.status().get().callers <= 1)
    for n in range(3):
        # Each update makes the caller's view of the replicas more outdated.
        service.update(Worker, str(n)).get()
        pids = set(caller.pids.call_one(4).get())
        assert pids == set(service.handle.pid.fanout().get().values())
    caller.stop().get()


def test_a_removed_replica_completes_its_calls_first() -> None:
    with Service.options(num_replicas=2).spawn("holders", Holder) as service:
        service.initialized.get()
        pending = [service.handle.hold.route() for _ in range(4)]
        shrinking = service.resize(1)
        wait_until(lambda: [r.state for r in service.status().get().replicas].count("draining"))
        # The draining replica takes no more calls, and exists until it has completed those it has.
        wait_until(lambda: len({service.handle.pid.route().get() for _ in range(4)}) == 1)
        assert not shrinking.done()
        # A fan-out reaches only replicas that take calls, so the draining one is released
        # separately.
        draining = next(r for r in service.status().get().replicas if r.state == "draining")
        draining.mesh.release.call().get()
        shrinking.get(timeout=20)
        service.handle.release.fanout().get()
        assert len({answer.get() for answer in pending}) == 2


def test_unfinished_calls_are_stopped_after_the_drain_timeout() -> None:
    options = Service.options(num_replicas=2, drain_timeout_s=0.3)
    with options.spawn("holders", Holder) as service:
        service.initialized.get()
        pending = [service.handle.hold.route() for _ in range(2)]
        service.resize(1).get(timeout=40)
        done = wait_until(lambda: [answer for answer in pending if answer.done()])
        assert len(done) == 1
        assert isinstance(done[0].exception(), MeshStopped)
        service.handle.release.fanout().get()


def test_a_session_moves_when_its_replica_is_removed(service: Service[Worker]) -> None:
    with service.session() as a, service.session() as b:
        pids = {a.pid.route().get(), b.pid.route().get()}
        assert len(pids) == 2
        service.resize(1).get()
        moved = [error for error in map(_move_of, (a, b)) if error is not None]
        assert len(moved) == 1
        assert moved[0].__cause__ is None
        assert a.pid.route().get() == b.pid.route().get()


def _move_of(session: Worker) -> SessionMoved | None:
    try:
        session.pid.route().get()
    except SessionMoved as moved:
        return moved
    return None


def test_size_follows_the_load() -> None:
    scale = Autoscale(
        3, target_outstanding=2, period_s=0.05, upscale_delay_s=0.1, downscale_delay_s=0.5
    )
    with Service.options(autoscale=scale).spawn("holders", Holder) as service:
        service.initialized.get()
        assert service.status().get().num_ready == 1
        pending = [service.handle.hold.route() for _ in range(12)]
        wait_until(lambda: service.status().get().num_ready == 3, 30)
        service.handle.release.fanout().get()
        assert all(answer.get() != os.getpid() for answer in pending)
        wait_until(lambda: len(service.status().get().replicas) == 1, 30)
        with pytest.raises(ValueError, match="follows its load"):
            service.resize(2)


def test_resize_refuses_an_invalid_size(service: Service[Worker]) -> None:
    with pytest.raises(ValueError, match="use stop"):
        service.resize(0)


def test_an_async_with_block_stops_the_service() -> None:
    async def program() -> list[int]:
        async with Service.options(num_replicas=2).spawn("workers", Worker) as service:
            await service.initialized
            async with service.session() as s:
                assert await s.double.route(2) == 4
            return (await service.handle.pid.fanout()).values()

    wait_until_gone(asyncio.run(program()))


def test_an_exception_in_a_with_block_does_not_wait_for_calls() -> None:
    pids: list[int] = []

    def program() -> None:
        with Service.options(num_replicas=2).spawn("holders", Holder) as service:
            pids.extend(service.handle.pid.fanout().get().values())
            service.handle.hold.route().get(timeout=0.1)

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        program()
    wait_until_gone(pids)
    assert time.monotonic() - began < 30


def test_the_autoscaler_waits_for_the_upscale_and_downscale_delays() -> None:
    scaler = Scaler(
        Autoscale(10, target_outstanding=2, upscale_delay_s=1.0, downscale_delay_s=10.0)
    )
    assert scaler.step(8, 1, 0.0) == 1
    assert scaler.step(2, 1, 0.5) == 1
    assert scaler.step(8, 1, 1.0) == 1
    assert scaler.step(9, 1, 2.0) == 5
    assert scaler.step(100, 5, 3.0) == 5
    assert scaler.step(100, 5, 4.0) == 10
    assert scaler.step(0, 10, 5.0) == 10
    assert scaler.step(5, 10, 14.9) == 10
    # Not below the maximum demand of the period.
    assert scaler.step(0, 10, 15.0) == 3


def test_replacements_back_off_after_failed_starts_up_to_a_limit() -> None:
    intensity = Intensity(3, 60.0, backoff_s=1.0, backoff_max_s=3.0)
    assert not intensity.lost(0.0, was_ready=True)
    assert intensity.start_at_s == 0.0
    assert not intensity.lost(10.0, was_ready=False)
    assert intensity.start_at_s == 11.0
    assert not intensity.lost(11.0, was_ready=False)
    assert intensity.start_at_s == 13.0
    assert not intensity.lost(65.0, was_ready=False)
    assert intensity.start_at_s == 68.0
    assert intensity.lost(66.0, was_ready=False)
