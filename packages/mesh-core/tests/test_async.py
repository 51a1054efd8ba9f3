"""Event loops: awaiting calls in programs, in notebooks, in actors, and by the thousand."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import (
    Accumulator,
    Actor,
    CallCancelled,
    concurrent_endpoint,
    current_rank,
    endpoint,
)

if TYPE_CHECKING:
    from mesh_core import ProcMesh

LIMIT_S = 30.0


class Echo(Actor):
    @endpoint
    def plain(self, value: Any) -> Any:
        return value

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def fail_on(self, rank: int) -> int:
        if current_rank().rank == rank:
            raise ValueError("bad rank")
        return current_rank().rank


class WaitingEcho(Echo):
    @concurrent_endpoint
    async def wait(self) -> None:
        await asyncio.Event().wait()


class AsyncEcho(Actor):
    @endpoint
    async def value(self, value: Any) -> Any:
        return value

    @concurrent_endpoint
    async def concurrent(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    @endpoint
    async def ask(self, other: Echo, count: int) -> list[Any]:
        return await asyncio.gather(*[other.plain.call_one(i) for i in range(count)])

    @endpoint
    async def fold(self, other: Echo) -> int:
        return await Accumulator(other.rank, 0, lambda a, b: a + b).accumulate()


def test_await_gather_and_get_return_the_same_results(procs: ProcMesh) -> None:
    mesh = procs.spawn("echo", Echo)

    async def main() -> None:
        result = await mesh.rank.call()
        assert list(result.values()) == [0, 1, 2, 3]
        several = await asyncio.gather(mesh.rank.call(), mesh.rank.choose(), mesh.plain.call("x"))
        assert list(several[0].values()) == [0, 1, 2, 3]
        assert list(several[2].values()) == ["x"] * 4

    asyncio.run(main())


def test_a_mesh_can_be_used_from_successive_event_loops(procs: ProcMesh) -> None:
    mesh = procs.spawn("echo", Echo)

    async def ask(value: int) -> Any:
        return list((await mesh.plain.call(value)).values())

    for value in range(5):
        assert asyncio.run(ask(value)) == [value] * 4


def test_ten_thousand_calls_can_be_in_flight_at_once(proc: ProcMesh) -> None:
    mesh = proc.spawn("echo", AsyncEcho)

    async def main() -> list[Any]:
        return await asyncio.gather(*[mesh.value.call_one(i) for i in range(10_000)])

    assert asyncio.run(main()) == list(range(10_000))


def test_async_for_over_a_stream_yields_values_or_pairs_with_ranks(procs: ProcMesh) -> None:
    mesh = procs.spawn("echo", Echo)

    async def main() -> None:
        assert sorted([value async for value in mesh.rank.stream()]) == [0, 1, 2, 3]
        pairs = [(p.rank, value) async for p, value in mesh.rank.stream().with_ranks()]
        assert sorted(pairs) == [(i, i) for i in range(4)]
        with pytest.raises(ValueError, match="bad rank"):
            async for _ in mesh.fail_on.stream(2):
                pass

    asyncio.run(main())


class Latch(Actor):
    """Replies once it was opened."""

    async def __init__(self) -> None:
        self.opened = asyncio.Event()

    @concurrent_endpoint
    async def pass_through(self, fails: bool = False) -> int:
        await self.opened.wait()
        if fails:
            raise ValueError("no way")
        return current_rank().rank

    @endpoint
    async def open(self) -> None:
        self.opened.set()

    @endpoint
    async def stream(self, latches: Latch) -> list[int]:
        """Await replies that arrive only if this event loop keeps running."""
        opening = asyncio.create_task(opens(latches))
        passed = [await answer for answer in latches.pass_through.stream()]
        await opening
        return passed


async def opens(latches: Latch) -> None:
    """Open latches sequentially."""
    for latch in latches.flatten("n"):
        await latch.open.call_one()


def test_iterating_a_stream_in_a_coroutine_does_not_block_its_event_loop(procs: ProcMesh) -> None:
    latches = procs.spawn("latches", Latch)

    async def main() -> None:
        opening = asyncio.create_task(opens(latches))
        passed = [await answer for answer in latches.pass_through.stream()]
        assert sorted(passed) == [0, 1, 2, 3]
        await opening

    asyncio.run(main())


def test_iterating_a_stream_in_an_endpoint_does_not_block_its_event_loop(procs: ProcMesh) -> None:
    latches = procs.spawn("latches", Latch)
    own = procs.slice(gpus=0).spawn("own", Latch)
    assert sorted(own.stream.call_one(latches).get(timeout=30)) == [0, 1, 2, 3]


def test_replies_of_a_stream_can_be_gathered(procs: ProcMesh) -> None:
    latches = procs.spawn("latches", Latch)

    async def main() -> None:
        answers = list(latches.pass_through.stream())
        assert not answers[0].done()
        opening = asyncio.create_task(opens(latches))
        assert sorted(await asyncio.gather(*answers)) == [0, 1, 2, 3]
        assert sorted(answer.get() for answer in answers) == [0, 1, 2, 3]
        await opening

    asyncio.run(main())


def test_awaiting_a_failed_reply_of_a_stream_raises_its_exception(procs: ProcMesh) -> None:
    latches = procs.spawn("latches", Latch)

    async def main() -> None:
        first, *_ = latches.pass_through.stream(fails=True)
        await opens(latches)
        with pytest.raises(ValueError, match="no way"):
            await first

    asyncio.run(main())


def test_a_reply_to_a_cancelled_stream_future_goes_to_the_next_one(procs: ProcMesh) -> None:
    latches = procs.slice(gpus=slice(0, 2)).spawn("latches", Latch)

    async def main() -> None:
        stream = latches.pass_through.stream()
        first, second = stream
        assert first.cancel()
        await opens(latches)
        (third,) = stream
        assert {await second, await third} == {0, 1}
        with pytest.raises(CallCancelled):
            await first

    asyncio.run(main())


def test_a_plain_for_loop_over_with_ranks_in_a_coroutine_is_refused(procs: ProcMesh) -> None:
    mesh = procs.spawn("echo", Echo)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="async for"):
            next(iter(mesh.rank.stream().with_ranks()))

    asyncio.run(main())


def test_futures_can_be_passed_to_asyncio_wait(procs: ProcMesh) -> None:
    latches = procs.slice(gpus=slice(0, 2)).spawn("latches", Latch)

    async def main() -> None:
        first, second = (latch.pass_through.call_one() for latch in latches.flatten("n"))
        done, pending = await asyncio.wait([first, second], timeout=0.01)
        assert (done, pending) == (set(), {first, second})
        await latches.slice(gpus=1).open.call_one()
        done, pending = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        assert (done, pending) == ({second}, {first})
        assert first.cancel()
        done, pending = await asyncio.wait([first, second], return_when=asyncio.FIRST_EXCEPTION)
        assert (done, pending) == ({first, second}, set())
        assert (first.cancelled(), second.cancelled()) == (True, False)

    asyncio.run(main())


def test_a_removed_callback_is_not_called(procs: ProcMesh) -> None:
    latch = procs.slice(gpus=0).spawn("latch", Latch)
    future = latch.pass_through.call_one()
    called: queue.SimpleQueue[str] = queue.SimpleQueue()
    removed, kept = (lambda _: called.put("removed")), (lambda _: called.put("kept"))
    future.add_done_callback(removed)
    future.add_done_callback(kept)
    assert (future.remove_done_callback(removed), future.remove_done_callback(removed)) == (1, 0)
    latch.open.call_one().get()
    assert called.get(timeout=10) == "kept"
    assert called.empty()


def test_get_inside_a_running_loop_works(procs: ProcMesh) -> None:
    mesh = procs.spawn("echo", Echo)

    async def cell() -> None:
        assert list(mesh.rank.call().get().values()) == [0, 1, 2, 3]
        future = mesh.rank.call()
        task = asyncio.ensure_future(future.as_asyncio())
        await asyncio.sleep(0)
        first = future.get()
        assert (await task) is first
        assert sorted(f.get() for f in mesh.rank.stream()) == [0, 1, 2, 3]
        assert Accumulator(mesh.rank, 0, lambda a, b: a + b).accumulate().get() == 6

    asyncio.run(cell())


def test_async_endpoints_await_other_actors(procs: ProcMesh) -> None:
    echo = procs.spawn("echo", Echo)
    asker = procs.slice(gpus=1).spawn("asker", AsyncEcho)
    assert asker.ask.call_one(echo.slice(gpus=0), 200).get() == list(range(200))
    assert asker.fold.call_one(echo).get() == 6


def test_concurrent_endpoints_start_in_send_order(proc: ProcMesh) -> None:
    class Starts(Actor):
        def __init__(self) -> None:
            self.order: list[int] = []

        @concurrent_endpoint
        async def start(self, n: int) -> None:
            self.order.append(n)
            for _ in range(n % 3):  # The calls end in a different order.
                await asyncio.sleep(0)

        @endpoint
        async def read(self) -> list[int]:
            return self.order

    mesh = proc.spawn("starts", Starts)
    futures = [mesh.start.call_one(n) for n in range(100)]
    for future in futures:
        future.get()
    assert mesh.read.call_one().get() == list(range(100))


def test_leaving_an_async_with_block_stops_the_processes(procs: ProcMesh) -> None:
    from mesh_core import MeshStopped, this_host

    async def main() -> Any:
        async with this_host().spawn_procs({"n": 2}) as own:
            mesh = own.spawn("echo", Echo)
            assert list((await mesh.rank.call()).values()) == [0, 1]
        return mesh

    mesh = asyncio.run(main())
    with pytest.raises(MeshStopped):
        mesh.rank.call().get()


def test_a_call_can_be_awaited_again_after_many_timeouts(proc: ProcMesh) -> None:
    class Held(Actor):
        def __init__(self) -> None:
            self.port: Any = None

        @endpoint(explicit_response_port=True)
        async def hold(self, port: Any) -> None:
            self.port = port

        @endpoint
        async def answer(self) -> None:
            self.port.send("at last")

    mesh = proc.spawn("held", Held)

    async def main() -> Any:
        future = mesh.hold.call_one()
        for _ in range(2000):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(future.as_asyncio(), 0)
            waiting = asyncio.ensure_future(future.as_asyncio())
            await asyncio.sleep(0)
            waiting.cancel()
        await mesh.answer.call_one()
        return await future

    assert asyncio.run(main()) == "at last"


def test_a_failed_task_group_is_not_a_cancellation(proc: ProcMesh) -> None:
    class Grouped(Actor):
        async def _fail(self) -> None:
            await asyncio.sleep(0)
            raise OSError("in a task")

        async def _wait_for_group(self) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fail())

        @endpoint
        async def raises(self) -> None:
            await self._wait_for_group()

        @concurrent_endpoint
        async def raises_beside(self) -> None:
            await self._wait_for_group()

        @endpoint
        async def catches(self) -> str:
            try:
                await self._wait_for_group()
            except* OSError as caught:
                text = str(caught.exceptions[0])
            return text

    mesh = proc.spawn("grouped", Grouped)
    for call in (mesh.raises.call_one(), mesh.raises_beside.call_one()):
        with pytest.raises(ExceptionGroup) as raised:
            call.get()
        assert "in a task" in str(raised.value.exceptions[0])
    assert mesh.catches.call_one().get() == "in a task"


def test_closed_event_loops_leak_no_descriptors(proc: ProcMesh) -> None:
    mesh = proc.spawn("echo", Echo)

    async def call() -> int:
        return int(await mesh.plain.call_one(1))

    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    assert asyncio.run(call()) == 1
    before = descriptors()
    for _ in range(20):
        assert asyncio.run(call()) == 1
    # Each loop has several, and other threads may open or close some during the test.
    assert descriptors() < before + 20


def test_a_blocked_event_loop_does_not_delay_other_threads(proc: ProcMesh) -> None:
    mesh = proc.spawn("waiting", WaitingEcho)
    is_done = threading.Event()

    def call_often() -> None:
        for n in range(200):
            assert mesh.plain.call_one(n).get() == n
        is_done.set()

    async def main() -> bool:
        # This call stays unanswered, so that the loop keeps watching the connections.
        waiting = mesh.wait.call_one().as_asyncio()
        await mesh.plain.call_one(0)
        thread = threading.Thread(target=call_often)
        thread.start()
        was_done = is_done.wait(LIMIT_S)
        thread.join()
        waiting.cancel()
        return was_done

    assert asyncio.run(main())
