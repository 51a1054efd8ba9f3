"""A first program as written for PyTorch Monarch, with only its imports changed.

Each function is one step of a tour: hello, meshes, slices, communicating actors, streams, ports,
errors, supervision, stopping.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

# `from monarch.actor import ...` in the original.
from mesh_core import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    Port,
    SupervisionError,  # from a private module in the original
    as_endpoint,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    this_host,
    this_proc,
)
from mesh_core.compat import current_size, send


class Counter(Actor):
    def __init__(self, initial_value: int) -> None:
        self.value = initial_value

    @endpoint
    def increment(self, by: int = 1) -> None:
        self.value += by

    @endpoint
    def get_value(self) -> int:
        return self.value

    def undecorated(self, factor: int) -> int:
        return self.value * factor


class Hello(Actor):
    @endpoint
    def hello(self, name: str) -> str:
        return f"hello {name} from {current_rank().rank} of {current_size()}"


class PingPong(Actor):
    """Plays with its partner in another mesh."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.other: PingPong | None = None
        self.received: list[str] = []

    @endpoint
    async def set_other(self, other: PingPong) -> None:
        rank = context().actor_instance.rank["gpus"]
        self.other = other.slice(gpus=rank)  # type: ignore[attr-defined]

    @endpoint
    async def send(self, rounds: int) -> int:
        assert self.other is not None
        total = 0
        for i in range(rounds):
            total += await self.other.receive.call_one(f"{self.name} {i}")
        return total

    @endpoint
    async def receive(self, message: str) -> int:
        self.received.append(message)
        return len(self.received)


class Workload(Actor):
    """Replies immediately, concurrently with other calls, or later."""

    @endpoint
    async def work(self) -> int:
        rank = context().message_rank.rank
        await asyncio.sleep(0)
        return rank

    @concurrent_endpoint
    async def wait_beside(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    @endpoint(explicit_response_port=True)
    async def answer_later(self, port: Port[int], value: int) -> None:
        async def later() -> None:
            await asyncio.sleep(0)
            port.send(value * 2)

        self.task = asyncio.create_task(later())

    @endpoint
    async def report(self, port: Port[str], count: int) -> None:
        for i in range(count):
            port.send(f"step {i}")


class Faulty(Actor):
    @endpoint
    def divide(self, a: int, b: int) -> float:
        return a / b

    @endpoint
    def crash(self) -> None:
        raise RuntimeError("on purpose")

    @endpoint
    def healthy(self) -> bool:
        return True


class Supervisor(Actor):
    """Owns an actor that fails, and keeps running."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.child = this_proc().spawn("child", Faulty)

    @endpoint
    def break_child(self) -> None:
        self.child.crash.broadcast()

    @endpoint
    def seen(self) -> list[str]:
        return self.failures

    @endpoint
    def new_child(self) -> bool:
        self.child = this_proc().spawn("child", Faulty)
        return self.child.healthy.call_one().get()

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.failures.append(str(failure))
        return True


def test_hello() -> None:
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    hello = procs.spawn("hello", Hello)
    values = hello.hello.call("you").get()
    assert values.item(gpus=1) == "hello you from 1 of {'gpus': 2}"
    for point, value in values.items():
        assert value.startswith(f"hello you from {point.rank}")
    procs.stop("done").get()


def test_counters_on_a_mesh_and_its_slices() -> None:
    procs = this_host().spawn_procs({"hosts": 2, "gpus": 2})
    counters = procs.spawn("counters", Counter, initial_value=3)
    counters.increment.broadcast()
    counters.slice(hosts=0).increment.call(by=10).get()
    counters.slice(hosts=1, gpus=1).increment.call_one(100).get()
    result = counters.get_value.call().get()
    assert [value for _, value in result] == [14, 14, 4, 104]
    assert [value for _, value in result.slice(gpus=1)] == [14, 104]
    flat = counters.flatten("rank")
    assert flat.get_value.call().get().item(rank=3) == 104
    assert counters.get_value.choose().get() in (14, 4, 104)
    assert len(counters) == 4
    assert counters.sizes == {"hosts": 2, "gpus": 2}
    assert counters.size("gpus") == 2
    assert as_endpoint(counters.undecorated).call(2).get().item(hosts=1, gpus=0) == 8
    total = Accumulator(counters.get_value, 0, lambda a, b: a + b)
    assert total.accumulate().get() == 136
    counters.stop().get()
    again = procs.spawn("counters", Counter, 1)
    assert [value for _, value in again.get_value.call().get()] == [1] * 4
    procs.stop().get()


def test_ping_pong() -> None:
    first = this_host().spawn_procs({"gpus": 2}).spawn("ping", PingPong, "ping")
    second = this_host().spawn_procs({"gpus": 2}).spawn("pong", PingPong, "pong")

    async def play() -> None:
        await asyncio.gather(first.set_other.call(second), second.set_other.call(first))
        results = await first.send.call(3)
        assert [value for _, value in results] == [6, 6]
        both = await asyncio.gather(
            first.slice(gpus=0).send.call(2), second.slice(gpus=1).send.call(2)
        )
        assert [next(iter(values.values())) for values in both] == [9, 3]

    asyncio.run(play())


def test_streams_ports_and_concurrent_endpoints() -> None:
    procs = this_host().spawn_procs({"gpus": 3})
    work = procs.spawn("work", Workload)
    assert sorted(future.get() for future in work.work.stream()) == [0, 1, 2]

    slow, quick = work.slice(gpus=0), work.slice(gpus=1)
    waiting = slow.wait_beside.call_one(0.2)
    assert slow.work.call_one().get() == 0
    assert waiting.get() == "waited"
    assert quick.answer_later.call_one(21).get() == 42

    port, receiver = Channel[str].open()
    quick.report.call_one(port, 2).get()
    assert [receiver.recv().get(), receiver.recv().get()] == ["step 0", "step 1"]

    answers, ranked = Channel[int].open_ranked()
    send(work.work, (), {}, answers)
    assert sorted(ranked.recv().get() for _ in range(3)) == [(0, 0), (1, 1), (2, 2)]

    future = work.work.call()
    with pytest.raises(TimeoutError):
        slow.wait_beside.call_one(0.5).get(timeout=0.01)
    assert len(future.result()) == 3
    assert future.exception() is None
    procs.stop().get()


def test_errors_arrive_with_their_type_and_leave_the_actor_alive() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    faulty = procs.spawn("faulty", Faulty)
    with pytest.raises(ActorError) as raised:
        faulty.divide.call(1, 0).get()
    assert isinstance(raised.value.exception, ZeroDivisionError)
    assert "division by zero" in str(raised.value)
    assert "in divide" in raised.value.exception_formatted
    with pytest.raises(ZeroDivisionError):
        faulty.slice(gpus=0).divide.call_one(1, 0).get()
    assert faulty.slice(gpus=1).divide.call_one(1, 4).get() == 0.25
    procs.stop().get()
    with pytest.raises(SupervisionError):
        faulty.healthy.call().get()


def test_an_owner_is_notified_of_failures_and_continues() -> None:
    procs = this_host().spawn_procs()
    supervisor = procs.spawn("supervisor", Supervisor)
    supervisor.break_child.call_one().get()
    until = time.monotonic() + 20
    while not (seen := supervisor.seen.call_one().get()) and time.monotonic() < until:
        time.sleep(0.01)
    assert len(seen) == 1
    assert "child" in seen[0]
    assert "on purpose" in seen[0]
    assert supervisor.new_child.call_one().get()
    procs.stop().get()


END = """
from mesh_core import Actor, endpoint, shutdown_context, this_host

class Counter(Actor):
    def __init__(self, initial_value: int) -> None:
        self.value = initial_value

    @endpoint
    def increment(self, by: int = 1) -> None:
        self.value += by

    @endpoint
    def get_value(self) -> int:
        return self.value

for start in range(2):
    counter = this_host().spawn_procs().spawn("counter", Counter, start)
    counter.increment.call_one().get()
    print(counter.get_value.call_one().get())
    shutdown_context().get()
"""


def test_a_program_can_shut_down_and_start_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", END], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.split() == ["1", "2"]
