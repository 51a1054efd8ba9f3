"""The current activity of the actors of a process."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from mesh_core import Actor, concurrent_endpoint, endpoint, this_proc
from mesh_core.spi import Activity, current_process
from mesh_core.testing import wait_until


@dataclass
class Latch:
    """A point at which endpoints of this process wait."""

    is_open: threading.Event = field(default_factory=threading.Event)


latches: dict[str, Latch] = {}


class Plain(Actor):
    @endpoint
    def work(self, latch: str) -> None:
        latches[latch].is_open.wait(60.0)

    @endpoint
    def ready(self) -> None: ...


class Async(Actor):
    @concurrent_endpoint
    async def work(self, latch: str) -> None:
        await asyncio.to_thread(latches[latch].is_open.wait, 60.0)

    @endpoint
    async def ready(self) -> None: ...


def of(name: str) -> Activity:
    (found,) = [one for one in current_process.activity() if one.name == name]
    return found


@pytest.mark.parametrize(("cls", "running", "queued"), [(Plain, 1, 2), (Async, 3, 0)])
def test_activity_lists_running_and_queued_calls(
    cls: type[Plain | Async], running: int, queued: int
) -> None:
    name = f"activity-{cls.__name__}"
    latches[name] = Latch()
    procs = this_proc()
    actor = procs.spawn(name, Plain) if cls is Plain else procs.spawn(name, Async)
    actor.ready.call_one().get()
    idle = of(name)
    assert (idle.class_name, idle.last, idle.running, idle.queued) == (cls.__name__, "ready", (), 0)
    calls = [actor.work.call_one(name) for _ in range(3)]
    wait_until(lambda: len(of(name).running) == running and of(name).queued == queued)
    busy = of(name)
    assert {one.endpoint for one in busy.running} == {"work"}
    assert all(one.call for one in busy.running)
    assert busy.last == "work"
    latches[name].is_open.set()
    for call in calls:
        call.get()
    wait_until(lambda: of(name).served == 4)
    assert of(name).running == ()
    actor.stop().get()
    assert all(one.name != name for one in current_process.activity())
