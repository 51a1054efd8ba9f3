"""A `bootstrap` may call actors, and a deadlock through it is an error."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import (
    Actor,
    Channel,
    MeshError,
    ProcDied,
    ProcMesh,
    configured,
    endpoint,
    this_host,
    this_proc,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = 30


class Registry(Actor):
    """Starts processes whose `bootstrap` calls it."""

    def __supervise__(self, _failure: Any) -> bool:
        return True

    @endpoint
    def get(self) -> None: ...

    @endpoint
    def ask(self, other: Any) -> None:
        """Call an actor that another owner has spawned."""
        other.get.call_one().get()

    @endpoint
    def start(self, me: Any, is_async: bool) -> None:
        """Wait for processes that wait for this actor."""
        this_host().spawn_procs(bootstrap=caller_of(me, is_async), name="late").initialized.get()

    @endpoint
    def call_late(self, me: Any) -> None:
        """Wait for an actor in processes that wait for this actor."""
        procs = this_host().spawn_procs(bootstrap=caller_of(me, False), name="late")
        procs.spawn("late", Registry).get.call_one().get()

    @endpoint
    def spawn_caller(self, me: Any) -> None:
        """Wait for an actor whose `__init__` waits for this actor."""
        this_host().spawn_procs(name="late").spawn("caller", Caller, me).initialized.get()


class AsyncRegistry(Actor):
    """Like `Registry`, on an event loop."""

    def __supervise__(self, _failure: Any) -> bool:
        return True

    @endpoint
    async def get(self) -> None: ...

    @endpoint
    async def start(self, me: Any, is_async: bool) -> None:
        """Wait for processes that wait for this actor."""
        procs = this_host().spawn_procs(bootstrap=caller_of(me, is_async), name="late")
        await procs.initialized


class Caller(Actor):
    """Calls a registry before it serves anything."""

    def __init__(self, registry: Any) -> None:
        registry.get.call_one().get()


def caller_of(registry: Any, is_async: bool) -> Callable[[], Any]:
    """Return a `bootstrap` that waits for a registry."""

    def call() -> None:
        registry.get.call_one().get()

    async def call_async() -> None:
        await registry.get.call_one()

    return call_async if is_async else call


@pytest.fixture(scope="module")
def watchful() -> Iterator[ProcMesh]:
    """A process with a short deadlock probe interval, which its child processes inherit."""
    with (
        configured(deadlock_probe_s=0.2),
        this_host().spawn_procs({"n": 1}, name="watchful") as procs,
    ):
        yield procs


@pytest.fixture
def registry(watchful: ProcMesh) -> Any:
    return watchful.spawn("registry", Registry)


@pytest.mark.parametrize("is_async", [False, True])
def test_bootstrap_may_wait_for_an_actor(registry: Any, is_async: bool) -> None:
    with this_host().spawn_procs({"n": 2}, bootstrap=caller_of(registry, is_async)) as procs:
        assert procs.initialized.get(timeout=LIMIT_S)


def test_bootstrap_may_wait_for_an_actor_that_it_spawns_in_its_own_process() -> None:
    def prepare() -> None:
        this_proc().spawn("own", Registry).get.call_one().get()

    with this_host().spawn_procs(bootstrap=prepare) as procs:
        assert procs.initialized.get(timeout=LIMIT_S)


def test_a_bootstrap_is_notified_when_the_sender_of_its_channel_dies() -> None:
    def prepare() -> None:
        port, receiver = Channel[int].open()
        procs = this_host().spawn_procs(bootstrap=None, name="sender")
        procs.spawn("sender", Keeper, port).initialized.get()
        procs.spawn("keeper", Keeper, port).leave.broadcast()
        with pytest.raises(ProcDied):
            receiver.recv().get()

    with this_host().spawn_procs(bootstrap=prepare) as procs:
        assert procs.initialized.get(timeout=LIMIT_S)


class Keeper(Actor):
    """Holds a port, which is lost with it."""

    def __init__(self, port: Any) -> None:
        self.port = port

    @endpoint
    def leave(self) -> None:
        os._exit(3)


def test_a_call_from_another_process_waits_for_a_long_bootstrap(registry: Any) -> None:
    began, receiver = Channel[Any].open()
    # Longer than a message otherwise waits for the spawn of its receiver: 5 s.
    seconds = 6.0

    def prepare() -> None:
        began.send(None)
        time.sleep(seconds)

    with this_host().spawn_procs(bootstrap=prepare) as procs:
        late = procs.spawn("late", Registry)
        receiver.recv().get(timeout=LIMIT_S)
        assert registry.ask.call_one(late).get(timeout=LIMIT_S) is None


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("cls", [Registry, AsyncRegistry])
def test_a_mutual_wait_of_an_actor_and_a_bootstrap_is_a_deadlock(
    watchful: ProcMesh, cls: type[Any], is_async: bool
) -> None:
    registry: Any = watchful.spawn("registry", cls)
    with pytest.raises(MeshError, match="in a cycle") as raised:
        registry.start.call_one(registry, is_async).get(timeout=LIMIT_S)
    text = str(raised.value)
    assert "'late' waits in 'bootstrap' for 'get'" in text
    assert "'registry' waits in 'start' for 'bootstrap'" in text


def test_a_call_to_processes_whose_bootstrap_waits_for_the_caller_is_a_deadlock(
    registry: Any,
) -> None:
    with pytest.raises(MeshError, match="in a cycle") as raised:
        registry.call_late.call_one(registry).get(timeout=LIMIT_S)
    assert "'late' waits in 'bootstrap' for 'get'" in str(raised.value)


def test_a_mutual_wait_of_an_actor_and_the_init_of_another_is_a_deadlock(
    registry: Any,
) -> None:
    with pytest.raises(MeshError, match="in a cycle") as raised:
        registry.spawn_caller.call_one(registry).get(timeout=LIMIT_S)
    assert "'caller' waits in '__init__' for 'get'" in str(raised.value)


def test_bootstrap_that_waits_for_an_actor_of_its_own_processes_is_a_deadlock() -> None:
    ports, port_receiver = Channel[Any].open()

    def prepare() -> None:
        port, receiver = Channel[Any].open()
        ports.send(port)
        receiver.recv().get().get.call_one().get()

    with configured(deadlock_probe_s=0.2):
        procs = this_host().spawn_procs(bootstrap=prepare, name="circular")
    own = procs.spawn("own", Registry)
    port_receiver.recv().get(timeout=LIMIT_S).send(own)
    with pytest.raises(MeshError, match="'circular' waits in 'bootstrap' for 'get'"):
        procs.initialized.get(timeout=LIMIT_S)
    assert isinstance(own.initialized.exception(timeout=LIMIT_S), MeshError)
    procs.stop().exception()
