"""Runs an actor with `async` endpoints again, in the recorded order of messages and replies.

A message starts a task, and a reply wakes the task that waits for it, each when its entry is
reached. Between two entries, everything that can run does, and timers run in virtual time.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mesh_core._calls.event_loop import waker_of
from mesh_core._recording.random_states import restore_random_states
from mesh_core._replay.errors import NotReplayable, RecordEnded, ReplayDiverged
from mesh_core._replay.loop import VirtualLoop
from mesh_core._runtime.serving import Serving, set_serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mesh_core._cases.case import Entry
    from mesh_core._replay.cell import ReplayCell
    from mesh_core._replay.engine import ReplayEngine
    from mesh_core._replay.outcomes import Outcomes

__all__ = ["LoopPlayer"]

# The virtual time that follows the last entry, in which timers of the actor still run.
_AFTER_S = 3600.0


class LoopPlayer:
    """One run of an actor on a separate event loop.

    Args:
        cell: The actor.
        engine: The engine of the replay.
        outcomes: Receives how messages end.
        call: Calls an endpoint, see `play`.
    """

    def __init__(
        self,
        cell: ReplayCell,
        engine: ReplayEngine,
        outcomes: Outcomes,
        call: Callable[..., Any],
    ) -> None:
        self._cell = cell
        self._engine = engine
        self._outcomes = outcomes
        self._call = call
        self._loop = VirtualLoop()
        self._tasks: list[asyncio.Task[None]] = []
        # The exception that ended the replay in one of the tasks.
        self._stopped: BaseException | None = None

    def play(self, until: float) -> None:
        """Run the actor up to the message with a number."""
        entries = self._cell.record.actor.entries
        asyncio.set_event_loop(self._loop)
        try:
            self._start(self._create())
            for entry, after in zip(entries, [*entries[1:], None], strict=True):
                if entry.kind == "message":
                    if entry.fields["n"] > until or self._outcomes.error is not None:
                        break
                    self._start(self._serve(entry))
                elif entry.kind == "reply":
                    self._deliver(entry)
                elif entry.kind == "received":
                    self._wake(self._engine.arrive(entry.fields["c"]))
                if after is None:
                    self._loop.settle(self._loop.time() + _AFTER_S)
                else:
                    self._loop.settle((after.time_ns - entries[0].time_ns) / 1e9)
                if self._stopped is not None:
                    raise self._stopped
        finally:
            for task in self._tasks:
                task.cancel()
            self._loop.settle(self._loop.time())
            asyncio.set_event_loop(None)
            self._loop.close()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._loop.create_task(self._watched(coroutine)))

    async def _watched(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except (NotReplayable, ReplayDiverged, RecordEnded) as ended:
            self._stopped = self._stopped or ended

    def _deliver(self, entry: Entry) -> None:
        self._wake(self._engine.deliver(entry.fields["k"], self._cell.record.reply(entry)))

    def _wake(self, port: int) -> None:
        if port:
            waker = waker_of(self._loop, self._cell.engine)
            self._loop.call_soon(waker._run, [port])

    async def _create(self) -> None:
        cell = self._cell
        set_serving(Serving(cell, None, cell.point.extent))
        restore_random_states(cell.record.begin_fields.get("random", {}))
        request = cell.request
        make: Any = request.cls
        try:
            cell.instance = make.__new__(make, *request.args, **request.kwargs)
            made = self._call(
                0, "__init__", cell.instance.__init__, *request.args, **request.kwargs
            )
            if asyncio.iscoroutine(made):
                await made
        except Exception as error:
            self._outcomes.failed(0, error)

    async def _serve(self, entry: Entry) -> None:
        number, plan, args, kwargs = self._cell.begin(entry)
        try:
            value = self._call(
                number, plan.name, plan.function, self._cell.instance, *args, **kwargs
            )
            if plan.is_async:
                value = await value
        except Exception as error:
            self._outcomes.failed(number, error)
        else:
            self._outcomes.returned(number, value)
