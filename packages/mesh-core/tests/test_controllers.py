"""Controllers: one actor per name in the whole job, found from anywhere."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from mesh_core import (
    Actor,
    ActorError,
    ActorFailed,
    ActorMesh,
    ProcMesh,
    context,
    endpoint,
    get_or_spawn_controller,
)


class Registry(Actor):
    def __init__(self, first: int = 0) -> None:
        self.seen = [first]

    @endpoint
    def note(self, rank: int) -> int:
        self.seen.append(rank)
        return len(self.seen)

    @endpoint
    def first(self) -> int:
        return self.seen[0]

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def leave(self) -> None:
        context().actor_instance.abort("told to")


class Client(Actor):
    @endpoint
    def find(self, name: str) -> Any:
        registry = get_or_spawn_controller(name, Registry, 7).get()
        registry.note.call_one(1).get()
        return registry


class Broken(Actor):
    def __init__(self) -> None:
        raise KeyError("no such table")


def test_a_controller_runs_in_the_process_of_the_program(procs: ProcMesh) -> None:
    found = procs.spawn("clients", Client).find.call("home").get().values()
    assert found[0].pid.call_one().get() == os.getpid()


def test_concurrent_lookups_return_the_same_controller(procs: ProcMesh) -> None:
    clients = procs.spawn("clients", Client)
    mine: list[object] = []
    asker = threading.Thread(
        target=lambda: mine.append(get_or_spawn_controller("same", Registry, 7).get())
    )
    asker.start()
    found = clients.find.call("same").get().values()
    asker.join()
    assert len({*found, *mine}) == 1
    assert found[0].note.call_one(0).get() == len(found) + 2


def test_repeated_lookups_are_equal_and_only_the_first_arguments_count() -> None:
    one = get_or_spawn_controller("equal", Registry, 1).get()
    two = get_or_spawn_controller("equal", Registry, 2).get()
    assert one == two
    assert isinstance(one, ActorMesh)
    assert two.first.call_one().get() == 1


def test_controllers_with_different_names_are_distinct() -> None:
    one = get_or_spawn_controller("left", Registry, 1).get()
    two = get_or_spawn_controller("right", Registry, 2).get()
    assert (one.first.call_one().get(), two.first.call_one().get()) == (1, 2)


async def test_controller_can_be_awaited() -> None:
    registry = await get_or_spawn_controller("awaited", Registry)
    assert await registry.first.call_one() == 0


def test_an_exception_in_init_is_raised_and_is_the_cause_of_later_errors() -> None:
    with pytest.raises(KeyError, match="no such table") as first:
        get_or_spawn_controller("broken", Broken).get(timeout=10)
    assert isinstance(first.value, ActorError)
    with pytest.raises(ActorFailed, match="no such table") as second:
        get_or_spawn_controller("broken", Broken).get(timeout=10)
    assert isinstance(second.value.__cause__, KeyError)


def test_the_error_of_a_failed_controller_says_why() -> None:
    registry = get_or_spawn_controller("leaver", Registry).get()
    registry.leave.call_one().get()
    with pytest.raises(ActorFailed, match="told to"):
        registry.first.call_one().get()
    with pytest.raises(ActorFailed, match="told to"):
        get_or_spawn_controller("leaver", Registry).get(timeout=10)


def test_arguments_are_checked_at_the_call() -> None:
    with pytest.raises(TypeError, match="too many positional"):
        get_or_spawn_controller("checked", Registry, 1, 2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="not a subclass of Actor"):
        get_or_spawn_controller("checked", int)  # type: ignore[type-var]
