"""One actor in a run, which serves a message when the scheduler selects it."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

from mesh_core._calls.actor import is_loop_driven
from mesh_core._calls.event_loop import waker_of
from mesh_core._recording.random_states import random_states, restore_random_states
from mesh_core._replay.cell import ReplayCell
from mesh_core._replay.compare import shown
from mesh_core._replay.errors import ReplayError
from mesh_core._replay.loop import VirtualLoop
from mesh_core._runtime.runtime import value_of
from mesh_core._runtime.serving import Serving, set_serving
from mesh_core._schedules.baton import Abandoned, BatonThread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._actors.cell import Plan
    from mesh_core._runtime.open_message import OpenMessage
    from mesh_core._schedules.events import Event
    from mesh_core._schedules.inputs import ScheduleActor
    from mesh_core._schedules.world import World

__all__ = ["RunningActor", "request_of"]


class RunningActor:
    """An actor of a run.

    Args:
        world: The run.
        described: The recorded actor.
        request: The decoded request that created it.

    Attributes:
        blocked_on: The reply port that its plain code waits for; 0 if it does not wait.
        timeout_at_s: When this wait ends, in virtual time; None if it has no timeout.
        wakes_at_s: When the sleep of its plain code ends; None if it does not sleep.
        is_busy: Whether it serves a message that excludes other messages.
        is_created: Whether its constructor has returned.
    """

    def __init__(self, world: World, described: ScheduleActor, request: Any) -> None:
        self.name: str = described.name
        self.proc: int = described.proc
        self.port: int = described.port
        self.described: ScheduleActor = described
        rank = described.record.begin_fields["rank"]
        self.cell: ReplayCell = ReplayCell(
            world.runtime, described.port, rank, request, described.record
        )
        self.blocked_on: int = 0
        self.timeout_at_s: float | None = None
        self.wakes_at_s: float | None = None
        self.is_busy: bool = False
        self.is_created: bool = False
        self._world = world
        self._random: dict[str, Any] = described.record.begin_fields.get("random", {})
        self._loop: VirtualLoop | None = VirtualLoop() if is_loop_driven(request.cls) else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: BatonThread | None = None

    def create(self) -> None:
        """Run the constructor."""
        self.is_busy = True
        if self._loop is None:
            self._on_thread(self._create_here)
        else:
            self._start(self._create_on_loop())

    def serve(self, event: Event) -> None:
        """Run the message of an event until the actor waits or has ended it."""
        message = event.content
        assert message is not None
        plan = self.cell.plan(message.meta)
        self.is_busy = self.is_busy or not plan.is_concurrent
        if self._loop is None or not plan.is_async:
            self._on_thread(lambda: self._serve_here(event, message, plan))
        else:
            self._start(self._serve_on_loop(event, message, plan))

    def take_reply(self, port: int) -> None:
        """Resume the code that waits for a reply, which the engine has received."""
        if self.blocked_on == port:
            if self._world.engine.is_ready(port):
                self._resume()
        elif self._loop is not None:
            self._loop.call_soon(waker_of(self._loop, self.cell.engine)._run, [port])
            self._settle()

    @property
    def next_timer_s(self) -> float | None:
        """The virtual time of the next timer; None without one."""
        me: Any = self._loop
        timers = [] if me is None else [one.when() for one in me._scheduled if not one._cancelled]
        timers += [one for one in (self.wakes_at_s, self.timeout_at_s) if one is not None]
        return min(timers, default=None)

    def fire_timers(self) -> None:
        """Run the timers that are due."""
        now_s = self._world.now_s
        if any(at is not None and at <= now_s for at in (self.wakes_at_s, self.timeout_at_s)):
            self._resume()
        if self._loop is not None:
            self._settle()

    def runs_on(self, thread: BatonThread) -> bool:
        """Return whether the plain code of the actor runs on a thread."""
        return self._thread is thread

    def wait(self) -> None:
        """Give way to other actors, on the thread of this one."""
        assert self._thread is not None
        self._thread.wait()

    @property
    def is_waiting(self) -> bool:
        """Whether something in the actor has begun and not ended."""
        is_blocked = self._thread is not None and self._thread.is_waiting
        return is_blocked or any(not task.done() for task in self._tasks)

    def close(self) -> None:
        """End everything that still runs."""
        if self._thread is not None:
            self._thread.abandon()
        if self._loop is not None:
            for task in self._tasks:
                task.cancel()
            self._settle()
            self._loop.close()

    def _on_thread(self, function: Any) -> None:
        if self._thread is None:
            self._thread = BatonThread(f"mesh-schedule-{self.name}")
        context, thread = copy_context(), self._thread
        self._with_own_random(lambda: thread.begin(lambda: context.run(function)))

    def _resume(self) -> None:
        assert self._thread is not None
        self.blocked_on, self.timeout_at_s, self.wakes_at_s = 0, None, None
        self._with_own_random(self._thread.resume)

    def _start(self, coroutine: Any) -> None:
        assert self._loop is not None
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._settle()

    def _settle(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            self._with_own_random(lambda: loop.settle(self._world.now_s))
        finally:
            asyncio.set_event_loop(None)

    def _with_own_random(self, run: Any) -> None:
        """Run code of the actor with the global random generators of its process."""
        restore_random_states(self._random)
        run()
        self._random = random_states()

    def _create_here(self) -> None:
        cell, request = self.cell, self.cell.request
        set_serving(Serving(cell, None, cell.point.extent))
        try:
            cell.instance = request.cls.__new__(request.cls, *request.args, **request.kwargs)
            cell.instance.__init__(*request.args, **request.kwargs)
        except Abandoned:
            raise
        except BaseException as error:
            self._world.failed(self, "__init__", None, error)
        self._created()

    async def _create_on_loop(self) -> None:
        cell, request = self.cell, self.cell.request
        set_serving(Serving(cell, None, cell.point.extent))
        make: Any = request.cls
        try:
            cell.instance = make.__new__(make, *request.args, **request.kwargs)
            made: Any = cell.instance.__init__(*request.args, **request.kwargs)
            if asyncio.iscoroutine(made):
                await made
        except Exception as error:
            self._world.failed(self, "__init__", None, error)
        self._created()

    def _created(self) -> None:
        self.is_busy, self.is_created = False, True

    def _serve_here(self, event: Event, message: OpenMessage, plan: Plan) -> None:
        try:
            args, kwargs = self._arguments(event, message, plan)
            value = plan.function(self.cell.instance, *args, **kwargs)
        except Abandoned:
            raise
        except BaseException as error:
            self._ended(plan)
            self._world.failed(self, plan.name, message, error)
        else:
            self._ended(plan)
            self._returned(message, plan, value)

    async def _serve_on_loop(self, event: Event, message: OpenMessage, plan: Plan) -> None:
        try:
            args, kwargs = self._arguments(event, message, plan)
            value = await plan.function(self.cell.instance, *args, **kwargs)
        except Exception as error:
            self._ended(plan)
            self._world.failed(self, plan.name, message, error)
        else:
            self._ended(plan)
            self._returned(message, plan, value)

    def _arguments(self, event: Event, message: OpenMessage, plan: Plan) -> Any:
        received: Any = message
        current = Serving(self.cell, received, plan.extent)
        current.number = self._world.number_of(event)
        set_serving(current)
        args, kwargs = self.cell.arguments(received, plan)
        told = [shown(one) for one in (args[1:] if plan.is_explicit else args)]
        told += [f"{name}={shown(one)}" for name, one in kwargs.items()]
        event.text = f"{plan.name}({', '.join(told)})"
        return args, kwargs

    def _ended(self, plan: Plan) -> None:
        if not plan.is_concurrent:
            self.is_busy = False

    def _returned(self, message: OpenMessage, plan: Plan, value: Any) -> None:
        if not plan.is_explicit:
            self._world.engine.answer(message, value)
        self._world.ended(message)


def request_of(described: ScheduleActor) -> Any:
    """Decode the request that created an actor.

    Raises:
        ReplayError: Something that it contains does not exist here.
    """
    try:
        return value_of(described.record.spawn_message())
    except (ImportError, AttributeError) as error:
        raise ReplayError(f"{described.name} cannot be created here: {error}") from error
