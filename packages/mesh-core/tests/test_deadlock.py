"""Deadlocks are detected and their members named; other waits are not affected."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import (
    Actor,
    DeadlockError,
    MeshError,
    concurrent_endpoint,
    configured,
    endpoint,
    this_host,
    this_proc,
)
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import Port, ProcMesh

PROBE_S = 0.3


@pytest.fixture(scope="module")
def watchful_procs() -> Iterator[ProcMesh]:
    """Processes that probe for deadlocks sooner than by default."""
    with configured(deadlock_probe_s=PROBE_S):
        watchful = this_host().spawn_procs({"gpus": 4}, name="watchful")
    yield watchful
    watchful.stop().get()


@pytest.fixture
def procs(watchful_procs: ProcMesh) -> ProcMesh:
    return watchful_procs


@pytest.fixture(scope="module")
def unwatchful_proc() -> Iterator[ProcMesh]:
    """A process that never probes for deadlocks: it detects only those that are visible locally."""
    with configured(deadlock_probe_s=3600):
        unwatchful = this_host().spawn_procs({"gpus": 1}, name="unwatchful")
    yield unwatchful
    unwatchful.stop().get()


_loop_is_taken = threading.Event()


class Late:
    """An object that arrives in a process after an actor has occupied its event loop."""

    def __reduce__(self) -> Any:
        return _arrive, ()


def _arrive() -> Late:
    assert _loop_is_taken.wait(20)
    return Late()


class Plain(Actor):
    """Calls others, or itself, and waits."""

    @endpoint
    def answer(self) -> str:
        return "answer"

    @endpoint
    def call(self, other: Any) -> str:
        return other.answer.call_one().get()

    @endpoint
    def call_all(self, others: Any) -> list[str]:
        return list(others.answer.call().get().values())

    @endpoint
    def stream(self, others: Any) -> list[str]:
        return [future.get() for future in others.answer.stream()]

    @endpoint
    def call_with_patience(self, other: Any, timeout: float) -> str:
        try:
            return other.answer.call_one().get(timeout=timeout)
        except TimeoutError as error:
            return type(error).__name__

    @endpoint
    def ping(self, other: Any, me: Any) -> str:
        """Call an actor that calls back."""
        return other.call.call_one(me).get()

    @endpoint
    def around(self, others: list[Any]) -> str:
        """Call the first actor, which calls the next, and so on."""
        if len(others) == 1:
            return others[0].answer.call_one().get()
        return others[0].around.call_one(others[1:]).get()

    @endpoint
    def slow(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slow"

    @endpoint
    def call_slow(self, other: Any, seconds: float) -> str:
        return other.slow.call_one(seconds).get()

    @endpoint
    def start_own(self, me: Any) -> None:
        """Call itself without waiting."""
        me.answer.call_one()


class Async(Actor):
    """The same with await."""

    @endpoint
    async def answer(self) -> str:
        return "answer"

    @endpoint
    async def call(self, other: Any) -> str:
        return await other.answer.call_one()

    @endpoint
    async def gather(self, other: Any) -> Any:
        return await asyncio.gather(other.answer.call_one(), asyncio.sleep(0))

    @endpoint
    async def await_task(self, other: Any) -> Any:
        return await asyncio.create_task(self._ask(other))

    @endpoint
    async def group(self, other: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(self._ask(other))
            group.create_task(asyncio.sleep(0))
        return asked.result()

    @endpoint
    async def wait(self, other: Any) -> Any:
        return await self._wait(other)

    async def _wait(self, other: Any) -> Any:
        asked = asyncio.create_task(self._ask(other))
        await asyncio.wait([asked, asyncio.create_task(asyncio.sleep(0))])
        return asked.result()

    @endpoint
    async def shield(self, other: Any) -> Any:
        return await asyncio.shield(asyncio.create_task(self._ask(other)))

    @endpoint
    async def nested(self, other: Any) -> Any:
        return await asyncio.gather(asyncio.create_task(self._wait(other)))

    @endpoint
    async def wait_for_first(self, other: Any, seconds: float) -> str:
        """Wait for itself or for some time, until the first of them ends."""
        asked = asyncio.create_task(self._ask(other))
        passed = asyncio.create_task(asyncio.sleep(seconds))
        await asyncio.wait([asked, passed], return_when=asyncio.FIRST_COMPLETED)
        return "waited" if passed.done() and not asked.done() else str(asked.exception())

    @endpoint
    async def wait_a_while(self, other: Any, seconds: float) -> str:
        asked = asyncio.create_task(self._ask(other))
        done, _ = await asyncio.wait([asked], timeout=seconds)
        return "done" if done else "waited"

    @concurrent_endpoint
    async def beside(self, other: Any) -> str:
        return await other.answer.call_one()

    @concurrent_endpoint
    async def beside_with_get(self, other: Any) -> str:
        return await asyncio.to_thread(lambda: other.answer.call_one().get())

    @endpoint
    async def get(self, other: Any) -> str:
        _loop_is_taken.set()
        try:
            return other.answer.call_one().get()
        finally:
            _loop_is_taken.clear()

    @endpoint
    async def ping(self, other: Any, me: Any) -> str:
        return await other.call.call_one(me)

    @concurrent_endpoint
    async def concurrent_ping(self, other: Any, me: Any) -> str:
        return await other.call.call_one(me)

    @endpoint
    async def later(self, me: Any) -> str:
        """Leave a task behind that waits for this actor, and return."""
        self.task = asyncio.create_task(self._ask(me))
        # The task sends the call in its first step.
        await asyncio.sleep(0)
        return "left"

    async def _ask(self, me: Any) -> str:
        return await me.answer.call_one()

    @endpoint
    async def outcome(self) -> str:
        return await self.task

    @endpoint
    async def mixed(self) -> str:
        return "mixed"

    @endpoint
    def plain_call(self, other: Any) -> str:
        return other.answer.call_one().get()


class ByPort(Actor):
    """Replies to one caller when another one calls."""

    def __init__(self) -> None:
        self.port: Any = None

    @endpoint(explicit_response_port=True)
    def wait(self, port: Port[str]) -> None:
        self.port = port

    @endpoint
    def is_asked(self) -> bool:
        return self.port is not None

    @endpoint
    def answer(self) -> str:
        self.port.send("released")
        return "answer"

    @endpoint
    def call(self, other: Any) -> str:
        return other.answer.call_one().get()


@pytest.mark.parametrize(
    ("cls", "name"),
    [(Plain, "call"), (Plain, "call_all"), (Plain, "stream"), (Async, "call"), (Async, "get"),
     (Async, "plain_call")],
)  # fmt: skip
def test_an_actor_that_waits_for_itself_gets_an_immediate_error(
    unwatchful_proc: ProcMesh, cls: type[Any], name: str
) -> None:
    mesh = unwatchful_proc.spawn("narcissus", cls)
    with pytest.raises(DeadlockError) as raised:
        getattr(mesh, name).call_one(mesh).get(timeout=60)
    assert isinstance(raised.value, MeshError)
    for part in ("narcissus", "answer", name):
        assert part in str(raised.value)
    assert mesh.answer.call_one().get() == "answer"


@pytest.mark.parametrize("name", ["gather", "await_task", "wait", "shield", "nested"])
def test_a_task_that_waits_for_its_own_actor_is_detected(proc: ProcMesh, name: str) -> None:
    mesh = proc.spawn("narcissus", Async)
    with pytest.raises(DeadlockError, match="narcissus"):
        getattr(mesh, name).call_one(mesh).get(timeout=10)
    assert mesh.answer.call_one().get() == "answer"


def test_a_task_group_that_waits_for_its_own_actor_is_detected(proc: ProcMesh) -> None:
    mesh = proc.spawn("narcissus", Async)
    with pytest.raises(ExceptionGroup) as raised:
        mesh.group.call_one(mesh).get(timeout=10)
    (error,) = raised.value.exceptions
    assert "narcissus" in str(error)
    assert raised.group_contains(DeadlockError)
    assert mesh.answer.call_one().get() == "answer"


@pytest.mark.parametrize("name", ["wait_for_first", "wait_a_while"])
def test_a_bounded_wait_for_a_task_is_not_a_deadlock(proc: ProcMesh, name: str) -> None:
    mesh = proc.spawn("patient", Async)
    assert getattr(mesh, name).call_one(mesh, 4 * PROBE_S).get(timeout=10) == "waited"
    assert mesh.answer.call_one().get() == "answer"


@pytest.mark.parametrize(
    ("first", "second"), [(Plain, Plain), (Async, Async), (Plain, Async), (Async, Plain)]
)
@pytest.mark.parametrize("is_same_process", [False, True])
def test_two_actors_that_wait_for_each_other_get_a_deadlock_error(
    procs: ProcMesh, first: type[Any], second: type[Any], is_same_process: bool
) -> None:
    one = procs.slice(gpus=0).spawn("one", first)
    two = procs.slice(gpus=0 if is_same_process else 1).spawn("two", second)
    one.answer.call_one().get()
    two.answer.call_one().get()
    with pytest.raises(DeadlockError) as raised:
        one.ping.call_one(two, one).get()
    for part in ("one", "two", "answer"):
        assert part in str(raised.value)
    assert one.answer.call_one().get() == "answer"
    assert two.answer.call_one().get() == "answer"


def test_a_cycle_of_four_actors_is_detected(procs: ProcMesh) -> None:
    ring = procs.spawn("ring", Plain)
    parts = [ring.slice(gpus=rank) for rank in range(4)]
    with pytest.raises(DeadlockError):
        parts[0].around.call_one([*parts[1:], parts[0]]).get(timeout=15)
    assert list(ring.answer.call().get().values()) == ["answer"] * 4


def test_a_cycle_through_a_concurrent_endpoint_is_not_a_deadlock(procs: ProcMesh) -> None:
    one = procs.slice(gpus=0).spawn("one", Async)
    two = procs.slice(gpus=1).spawn("two", Async)
    assert one.concurrent_ping.call_one(two, one).get(timeout=10) == "answer"
    assert one.beside.call_one(one).get(timeout=10) == "answer"
    assert one.beside_with_get.call_one(one).get(timeout=10) == "answer"


def test_a_cycle_through_a_waiting_concurrent_endpoint_is_detected(procs: ProcMesh) -> None:
    one = procs.slice(gpus=0).spawn("one", Plain)
    two = procs.slice(gpus=1).spawn("two", Async)

    class Caller(Plain):
        @endpoint
        def call_beside(self, other: Any, me: Any) -> str:
            return other.beside.call_one(me).get()

    one = procs.slice(gpus=0).spawn("one", Caller)
    with pytest.raises(DeadlockError):
        one.call_beside.call_one(two, one).get(timeout=15)


def test_long_waits_are_not_deadlocks(procs: ProcMesh) -> None:
    one = procs.slice(gpus=0).spawn("one", Plain)
    two = procs.slice(gpus=1).spawn("two", Plain)
    three = procs.slice(gpus=2).spawn("three", Plain)
    busy = three.slow.call_one(5 * PROBE_S)
    chain = one.around.call_one([two, three])
    four = procs.slice(gpus=3).spawn("four", Plain)
    back = four.call.call_one(one)
    assert chain.get(timeout=20) == "answer"
    assert back.get(timeout=20) == "answer"
    assert busy.get(timeout=20) == "slow"


def test_alternating_calls_between_two_actors_are_not_deadlocks(procs: ProcMesh) -> None:
    one = procs.slice(gpus=0).spawn("one", Plain)
    two = procs.slice(gpus=1).spawn("two", Plain)
    futures = [one.call_slow.call_one(two, 0.3) for _ in range(5)]
    assert [future.get(timeout=20) for future in futures] == ["slow"] * 5
    futures = [two.call_slow.call_one(one, 0.01) for _ in range(30)]
    assert [future.get(timeout=20) for future in futures] == ["slow"] * 30


def test_a_wait_with_a_timeout_raises_timeout_error(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=0).spawn("patient", Plain)
    assert mesh.call_with_patience.call_one(mesh, 0.05).get() == "TimeoutError"
    assert mesh.call_with_patience.call_one(mesh, 2 * PROBE_S).get() == "TimeoutError"


def test_an_actor_can_call_itself_without_waiting(proc: ProcMesh) -> None:
    mesh = proc.spawn("plain", Plain)
    mesh.start_own.call_one(mesh).get()
    assert mesh.answer.call_one().get() == "answer"
    other = proc.spawn("async", Async)
    assert other.later.call_one(other).get() == "left"
    assert other.answer.call_one().get() == "answer"
    assert other.outcome.call_one().get(timeout=10) == "answer"


def test_a_wait_for_a_reply_through_an_explicit_port_is_not_a_deadlock(procs: ProcMesh) -> None:
    by_port = procs.slice(gpus=0).spawn("by_port", ByPort)

    class Waiter(Plain):
        @endpoint
        def wait(self, other: Any) -> str:
            return other.wait.call_one().get()

    waiter = procs.slice(gpus=1).spawn("waiter", Waiter)
    waiting = waiter.wait.call_one(by_port)
    wait_until(lambda: by_port.is_asked.call_one().get())
    with pytest.raises(TimeoutError):
        waiting.get(timeout=3 * PROBE_S)
    assert by_port.answer.call_one().get() == "answer"
    assert waiting.get(timeout=10) == "released"


def test_the_program_may_wait_for_actors_of_its_own_process(procs: ProcMesh) -> None:
    local = this_proc().spawn("local", Plain)
    remote = procs.slice(gpus=0).spawn("remote", Plain)
    assert remote.call.call_one(local).get(timeout=10) == "answer"
    local.stop().get()


def test_blocking_the_event_loop_of_the_called_actor_is_an_immediate_error(
    unwatchful_proc: ProcMesh,
) -> None:
    one, two = unwatchful_proc.spawn("one", Async), unwatchful_proc.spawn("two", Async)
    with pytest.raises(DeadlockError, match="await"):
        one.get.call_one(two).get(timeout=60)
    assert one.call.call_one(two).get() == "answer"
    plain = unwatchful_proc.spawn("plain", Plain)
    assert one.get.call_one(plain).get() == "answer"


class Awaited(Async):
    """Receives an argument when it is spawned."""

    def __init__(self, _: Late) -> None:
        super().__init__()


def test_blocking_the_event_loop_of_an_actor_being_spawned_is_an_error(
    unwatchful_proc: ProcMesh,
) -> None:
    one = unwatchful_proc.spawn("one", Async)
    two = unwatchful_proc.spawn("two", Awaited, Late())
    with pytest.raises(DeadlockError, match="await"):
        one.get.call_one(two).get(timeout=60)
    assert two.answer.call_one().get() == "answer"


def test_a_cycle_is_detected_by_default(all_procs: ProcMesh) -> None:
    one = all_procs.slice(gpus=0).spawn("one", Plain)
    two = all_procs.slice(gpus=1).spawn("two", Async)
    one.answer.call_one().get()
    two.answer.call_one().get()
    with pytest.raises(DeadlockError):
        one.ping.call_one(two, one).get()
