"""The awaits of suspended tasks as shown by `stacks`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

from recorded_actors import LIMIT_S
from recorded_program import config
from stuck_actors import Dreamer

from mesh_core import this_host
from mesh_core.testing import wait_until
from mesh_telemetry import Telemetry
from mesh_telemetry._events.process_socket import stacks
from mesh_telemetry._events.task_stacks import task_frames


def test_a_call_that_awaits_forever_is_found_by_one_query(place: Path) -> None:
    sql = (
        "select p.mesh, s.task, s.depth, s.function from stacks s join procs p on p.proc = s.proc "
        "where s.task is not null and s.file like '%stuck_actors.py' order by s.depth"
    )
    with Telemetry(config(place)) as telemetry:
        procs = this_host().spawn_procs(name="night")
        dreamer: Any = procs.spawn("dreamer", Dreamer)
        dreaming = dreamer.dream.call_one()

        def found() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = telemetry.query(sql, timeout=LIMIT_S).table.to_pylist()
            return rows if len(rows) == 3 else []

        rows = wait_until(found, LIMIT_S)
        assert [(row["mesh"], row["task"], row["function"]) for row in rows] == [
            ("night", "dream", "Dreamer.words"),
            ("night", "dream", "Dreamer.sleep_deeply"),
            ("night", "dream", "Dreamer.dream"),
        ]
        assert [row["depth"] for row in rows] == sorted(row["depth"] for row in rows)
        whole = telemetry.query("select function, depth from stacks where task is null")
        assert whole.table.num_rows > 0
        dreamer.wake.call_one().get(LIMIT_S)
        assert dreaming.get(LIMIT_S) == "awake"
        own = "select count(*) as n from stacks where task like 'mesh-mesh-telemetry%'"
        assert telemetry.query(own, timeout=LIMIT_S).table.to_pylist() == [{"n": 0}]
        procs.stop().get(LIMIT_S)


class Awaitable:
    """An awaitable with a given `__await__`."""

    def __init__(self, event: asyncio.Event) -> None:
        self.event = event

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.pause().__await__()

    async def pause(self) -> None:
        await self.event.wait()


async def numbers(event: asyncio.Event) -> AsyncIterator[int]:
    await Awaitable(event)
    yield 1


async def first(event: asyncio.Event) -> int:
    return await anext(numbers(event), 0)


async def test_frames_are_followed_through_any_awaitable() -> None:
    event = asyncio.Event()
    task = asyncio.create_task(first(event))
    await asyncio.sleep(0)
    functions = [frame.f_code.co_qualname for frame in task_frames(task.get_coro())]
    assert functions == ["Event.wait", "Awaitable.pause", "numbers", "first"]
    event.set()
    assert await task == 1
    assert task_frames(task.get_coro()) == []


def test_tasks_of_any_loop_are_found_from_another_thread() -> None:
    ready, loops = threading.Event(), []

    async def wait(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        event = asyncio.Event()
        tasks = [asyncio.create_task(wait(event), name=f"waiter {number}") for number in range(3)]
        loops.append((asyncio.get_running_loop(), event))
        await asyncio.sleep(0)
        ready.set()
        await asyncio.gather(*tasks)

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="theirs")
    thread.start()
    assert ready.wait(LIMIT_S)

    def found() -> set[str | None]:
        names = {task for name, _, task, _, _ in stacks() if name == "theirs"}
        return names if len(names) == 5 else set()

    assert {"waiter 0", "waiter 1", "waiter 2", None} < wait_until(found, LIMIT_S)
    ((loop, event),) = loops
    loop.call_soon_threadsafe(event.set)
    thread.join(LIMIT_S)
    assert not [task for name, _, task, _, _ in stacks() if name == "theirs"]
