"""Deadlines and cancellation: the caller stops waiting and the callee stops working."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import (
    Actor,
    ActorError,
    CallCancelled,
    DeadlineExceeded,
    MeshError,
    concurrent_endpoint,
    configured,
    endpoint,
)
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from mesh_core import Port, ProcMesh


class Worker(Actor):
    """Plain endpoints with a long run time."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @endpoint
    def work(self, name: str) -> None:
        self.log.append(f"{name} begins")
        try:
            while True:
                time.sleep(0.001)
        except CallCancelled:
            self.log.append(f"{name} was cancelled")
            raise

    @endpoint
    def sleep_for(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    @endpoint
    def note(self, name: str) -> None:
        self.log.append(name)

    @endpoint
    def read(self) -> list[str]:
        return self.log

    @endpoint
    def exit_with(self, error: BaseException) -> None:
        raise error


class AsyncWorker(Actor):
    """The same with `async`."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @endpoint
    async def work(self, name: str) -> None:
        await self._work(name)

    @concurrent_endpoint
    async def beside(self, name: str) -> None:
        await self._work(name)

    async def _work(self, name: str) -> None:
        self.log.append(f"{name} begins")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.log.append(f"{name} was cancelled")
            raise

    @endpoint
    def plain(self, name: str) -> None:
        self.log.append(f"{name} begins")
        try:
            while True:
                time.sleep(0.001)
        except CallCancelled:
            self.log.append(f"{name} was cancelled")
            raise

    @endpoint
    async def cancels_itself(self) -> None:
        raise asyncio.CancelledError("by itself")

    @endpoint
    async def note(self, name: str) -> None:
        self.log.append(name)

    @endpoint
    async def read(self) -> list[str]:
        return self.log

    @endpoint
    async def exit_with(self, error: BaseException) -> None:
        raise error


PLACES = [(Worker, "work"), (AsyncWorker, "work"), (AsyncWorker, "beside"), (AsyncWorker, "plain")]


def running(procs: ProcMesh, cls: type[Any]) -> Any:
    """Spawn actors and wait until they run, so that a call starts immediately."""
    mesh = procs.spawn("worker", cls)
    mesh.read.call().get()
    return mesh


@pytest.mark.parametrize(("cls", "name"), PLACES)
def test_an_exceeded_deadline_raises_in_the_caller_and_cancels_the_endpoint(
    proc: ProcMesh, cls: type[Any], name: str
) -> None:
    mesh = running(proc, cls)
    mesh.read.call_one().get()
    before = time.monotonic()
    with pytest.raises(DeadlineExceeded) as raised:
        getattr(mesh, name).options(timeout=0.2).call_one("a").get()
    assert time.monotonic() - before > 0.19
    assert isinstance(raised.value, TimeoutError)
    assert isinstance(raised.value, MeshError)
    assert name in str(raised.value)
    wait_until(lambda: mesh.read.call_one().get() == ["a begins", "a was cancelled"])


@pytest.mark.parametrize(("cls", "name"), PLACES)
def test_cancelling_a_future_cancels_the_endpoint(
    proc: ProcMesh, cls: type[Any], name: str
) -> None:
    mesh = running(proc, cls)
    future = getattr(mesh, name).call_one("a")
    queued = mesh.note.call_one("queued") if name != "beside" else None
    with pytest.raises(TimeoutError):
        future.get(timeout=0.2)
    assert future.cancel()
    assert not future.cancel()
    assert future.done()
    with pytest.raises(CallCancelled):
        future.get()
    expected = ["a begins", "a was cancelled"]
    if queued is not None:
        queued.get()
        expected.append("queued")
    # Concurrent calls also end concurrently.
    wait_until(lambda: mesh.read.call_one().get() == expected)


@pytest.mark.parametrize(("cls", "name"), PLACES)
def test_a_queued_call_that_is_cancelled_never_starts(
    proc: ProcMesh, cls: type[Any], name: str
) -> None:
    mesh = running(proc, cls)
    blocker = mesh.work.call_one("blocker")
    queued = [getattr(mesh, name).call_one(f"q{i}") for i in range(3)]
    with pytest.raises(TimeoutError):
        blocker.get(timeout=0.1)
    for future in queued:
        assert future.cancel()
    assert blocker.cancel()
    assert mesh.read.call_one().get() == ["blocker begins", "blocker was cancelled"]


@pytest.mark.parametrize(("cls", "name"), PLACES)
def test_a_queued_call_whose_deadline_has_passed_never_starts(
    proc: ProcMesh, cls: type[Any], name: str
) -> None:
    mesh = running(proc, cls)
    blocker = mesh.work.call_one("blocker")
    with pytest.raises(DeadlineExceeded):
        getattr(mesh, name).options(timeout=0.1).call_one("late").get()
    blocker.cancel()
    assert mesh.read.call_one().get() == ["blocker begins", "blocker was cancelled"]


def test_the_deadline_error_of_a_mesh_call_names_the_late_ranks(procs: ProcMesh) -> None:
    mesh = running(procs, Worker)
    held = mesh.slice(gpus=2).work.call_one("held")
    with pytest.raises(DeadlineExceeded) as raised:
        mesh.read.options(timeout=0.3).call().get()
    assert [point.rank for point, _ in raised.value.failures] == [2]
    result = mesh.read.options(timeout=0.3, return_exceptions=True).call().get()
    kinds = [isinstance(value, DeadlineExceeded) for value in result.values()]
    assert kinds == [False, False, True, False]
    held.cancel()
    mesh.read.call().get()


def test_cancelling_a_mesh_call_cancels_it_on_every_rank(procs: ProcMesh) -> None:
    mesh = running(procs, AsyncWorker)
    future = mesh.work.call("x")
    with pytest.raises(TimeoutError):
        future.get(timeout=0.2)
    future.cancel()
    logs = mesh.read.call().get()
    assert list(logs.values()) == [["x begins", "x was cancelled"]] * 4


def test_an_awaited_call_raises_when_its_deadline_passes(proc: ProcMesh) -> None:
    mesh = running(proc, AsyncWorker)

    async def main() -> None:
        with pytest.raises(DeadlineExceeded):
            await mesh.work.options(timeout=0.3).call_one("a")

    asyncio.run(main())
    assert mesh.read.call_one().get()[-1] == "a was cancelled"


def test_the_configured_deadline_applies_unless_a_call_overrides_it(
    proc: ProcMesh,
) -> None:
    mesh = running(proc, Worker)
    mesh.read.call_one().get()
    with configured(call_timeout_s=0.1):
        with pytest.raises(DeadlineExceeded, match=r"0\.1"):
            mesh.work.call_one("a").get()
        assert mesh.sleep_for.options(timeout=5).call_one(0.3).get() == "slept"


def test_a_reply_in_time_raises_no_deadline_error(proc: ProcMesh) -> None:
    mesh = running(proc, Worker)
    in_time = mesh.read.options(timeout=0.2).call_one()
    assert in_time.get() == []
    with pytest.raises(DeadlineExceeded):  # This deadline is later than that of the first call.
        mesh.work.options(timeout=0.2).call_one("a").get()
    assert in_time.get() == []


def test_a_late_cancellation_does_not_affect_later_calls(proc: ProcMesh) -> None:
    mesh = running(proc, Worker)
    for i in range(200):
        future = mesh.note.call_one("a")
        after = mesh.note.call_one(f"after {i}")
        future.cancel()
        after.get()
    log = mesh.read.call_one().get()
    assert [line for line in log if line != "a"] == [f"after {i}" for i in range(200)]


def test_a_cancelled_call_with_an_explicit_port_drops_the_reply(proc: ProcMesh) -> None:
    class Keeper(Actor):
        def __init__(self) -> None:
            self.port: Port[int] | None = None

        @endpoint(explicit_response_port=True)
        def keep(self, port: Port[int]) -> None:
            self.port = port

        @endpoint
        def has_port(self) -> bool:
            return self.port is not None

        @endpoint
        def answer(self) -> str:
            assert self.port is not None
            self.port.send(1)
            return "sent"

    mesh = proc.spawn("keeper", Keeper)
    future = mesh.keep.call_one()
    with pytest.raises(TimeoutError):
        future.get(timeout=0.05)
    assert mesh.has_port.call_one().get()  # The call must be running before it is cancelled.
    future.cancel()
    assert mesh.answer.call_one().get() == "sent"


def test_cancelling_from_another_thread_wakes_the_waiting_thread(proc: ProcMesh) -> None:
    mesh = running(proc, AsyncWorker)
    future = mesh.work.call_one("a")
    timer = threading.Timer(0.1, future.cancel)
    timer.start()
    with pytest.raises(CallCancelled):
        future.get()


def test_cancelling_wakes_the_awaiting_task(proc: ProcMesh) -> None:
    mesh = running(proc, AsyncWorker)

    async def main() -> None:
        future = mesh.work.call_one("a")
        waiting = asyncio.ensure_future(future.as_asyncio())
        await asyncio.sleep(0)
        future.cancel()
        with pytest.raises(CallCancelled):
            await waiting

    asyncio.run(main())


@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("base")],
    ids=lambda error: type(error).__name__,
)
def test_base_exceptions_in_an_endpoint_reach_the_caller_and_the_actor_survives(
    proc: ProcMesh, cls: type[Any], error: BaseException
) -> None:
    mesh = running(proc, cls)
    with pytest.raises(ActorError) as raised:
        mesh.exit_with.call_one(error).get()
    assert type(raised.value.exception) is type(error)
    assert mesh.read.call_one().get() == []


def test_a_stop_iteration_in_an_endpoint_reaches_the_caller(proc: ProcMesh) -> None:
    with pytest.raises(ActorError) as raised:
        running(proc, Worker).exit_with.call_one(StopIteration(1)).get()
    assert isinstance(raised.value.exception, StopIteration)

    class Plain(AsyncWorker):
        @endpoint
        def halt(self) -> None:
            raise StopIteration(2)

    mesh = proc.spawn("worker", Plain)
    with pytest.raises(ActorError) as raised:
        mesh.halt.call_one().get()
    assert isinstance(raised.value.exception, StopIteration)


def test_a_cancelled_error_raised_by_the_endpoint_reaches_the_caller(proc: ProcMesh) -> None:
    mesh = running(proc, AsyncWorker)
    with pytest.raises(ActorError) as raised:
        mesh.cancels_itself.call_one().get()
    assert isinstance(raised.value.exception, asyncio.CancelledError)
    assert mesh.read.call_one().get() == []
