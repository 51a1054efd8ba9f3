"""Order: messages from one sender arrive in the order in which they were sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import Actor, Channel, endpoint
from mesh_core.compat import send

if TYPE_CHECKING:
    from mesh_core import ProcMesh


class Log(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []

    @endpoint
    def note(self, n: int) -> int:
        self.seen.append(n)
        return n

    @endpoint
    def read(self) -> list[int]:
        return self.seen


class AsyncLog(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []

    @endpoint
    async def note(self, n: int) -> int:
        await asyncio.sleep(0)
        self.seen.append(n)
        return n

    @endpoint
    async def read(self) -> list[int]:
        return self.seen


class Relay(Actor):
    """Sends from within an actor, with all verbs in turn."""

    @endpoint
    def run(self, logs: Any, count: int) -> None:
        send_in_turns(logs, range(count))

    @endpoint
    async def run_async(self, logs: Any, count: int) -> None:
        futures = []
        for n in range(count):
            futures.append(logs.note.call(n))
            if n % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*futures)


def send_in_turns(logs: Any, numbers: range) -> None:
    """Send each number to every actor, with a different verb or slice each time."""
    port, _receiver = Channel[int].open()
    count = len(logs)
    for n in numbers:
        way = n % 5
        if way == 0:
            logs.note.broadcast(n)
        elif way == 1:
            logs.note.call(n)
        elif way == 2:
            for rank in range(count):
                logs.slice(gpus=rank).note.call_one(n)
        elif way == 3:
            logs.slice(gpus=slice(0, 2)).note.stream(n)
            logs.slice(gpus=slice(2, None)).note.broadcast(n)
        else:
            send(logs.note, (n,), {}, port)


@pytest.mark.parametrize("cls", [Log, AsyncLog])
def test_every_actor_gets_a_programs_messages_in_order(procs: ProcMesh, cls: type[Any]) -> None:
    logs = procs.spawn("log", cls)
    send_in_turns(logs, range(500))
    assert list(logs.read.call().get().values()) == [list(range(500))] * 4


@pytest.mark.parametrize("cls", [Log, AsyncLog])
def test_every_actor_gets_an_actors_messages_in_order(procs: ProcMesh, cls: type[Any]) -> None:
    logs = procs.spawn("log", cls)
    relay = procs.slice(gpus=1).spawn("relay", Relay)
    relay.run.call_one(logs, 300).get()
    relay.run_async.call_one(logs, 300).get()
    expected = [*range(300), *range(300)]
    assert list(logs.read.call().get().values()) == [expected] * 4


def test_messages_of_an_event_loop_arrive_in_the_order_of_the_calls(procs: ProcMesh) -> None:
    logs = procs.spawn("log", AsyncLog)

    async def main() -> None:
        await asyncio.gather(*[logs.note.call(n) for n in range(300)])

    asyncio.run(main())
    assert list(logs.read.call().get().values()) == [list(range(300))] * 4


def test_the_start_of_an_actor_comes_before_its_first_message(procs: ProcMesh) -> None:
    for _ in range(10):
        logs = procs.spawn("log", Log)
        logs.note.broadcast(1)
        assert list(logs.read.call().get().values()) == [[1]] * 4


def test_large_and_small_messages_do_not_overtake_each_other(procs: ProcMesh) -> None:
    class Sizes(Actor):
        def __init__(self) -> None:
            self.seen: list[int] = []

        @endpoint
        def take(self, data: bytes) -> None:
            self.seen.append(len(data))

        @endpoint
        def read(self) -> list[int]:
            return self.seen

    mesh = procs.spawn("sizes", Sizes)
    sizes = [1, 2_000_000, 2, 70_000, 3, 500_000, 4]
    for size in sizes:
        mesh.take.broadcast(b"x" * size)
    assert list(mesh.read.call().get().values()) == [sizes] * 4
