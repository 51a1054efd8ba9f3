"""Actors with `async` in them: they share the event loop of their process.

The loop runs the `async` parts. Plain endpoints of such a class, which may block, run on a thread of
the actor's own; one message is still served at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import copy_context

from mesh_core._actor import endpoints_of
from mesh_core._actor_cell import ActorCell, ActorFailure
from mesh_core._config import effective
from mesh_core._context import Serving, set_serving
from mesh_core._core import PortClosed
from mesh_core._errors import MeshStopped
from mesh_core._loop import loop_thread, waker_of
from mesh_core._own_thread import OwnThread, run_beside
from mesh_core._wire import CANCELLED, READY, STOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_core._actor_cell import Plan
    from mesh_core._core import Message

__all__ = ["LoopCell"]

_BATCH_MAX = 64
# After so many messages the loop lets others run, even if there are more.
_FAIRNESS = 64
# How often an end that waits for concurrent endpoints looks whether it was cut short.
_LOOK_S = 0.2


class LoopCell(ActorCell):
    """An actor that runs on the event loop of its process."""

    def start(self, spawn_message: Message) -> None:
        """Starts the actor's task; the actor is made there."""
        self.left: deque[Message] = deque()
        self.tasks: dict[asyncio.Task[None], Message] = {}
        self._running: Message | None = None
        self._is_cancelling = False
        self._woken: asyncio.Future[None] | None = None
        self._thread: OwnThread | None = None
        self.loop = loop_thread().loop
        loop_thread().call(self._begin, spawn_message)

    def _begin(self, spawn_message: Message) -> None:
        self._task = self.loop.create_task(self._live(spawn_message), name=f"mesh-{self.name}")

    async def _live(self, spawn_message: Message) -> None:
        try:
            await self._create()
            self.answer(spawn_message, None)
            waker_of(self.loop).watch_always(self.port, self._wake)
            await self._serve()
        except (ActorFailure, PortClosed, asyncio.CancelledError):
            # What has failed is in `abort_error`; a cancellation came too late for its message.
            pass
        waker_of(self.loop).forget(self.port)
        await self._end(spawn_message)

    async def _create(self) -> None:
        order = self.order
        set_serving(Serving(self, None, self.point.extent))
        init: Any = order.cls.__init__
        try:
            instance = order.cls.__new__(order.cls, *order.args, **order.kwargs)
            if asyncio.iscoroutinefunction(init):
                await instance.__init__(*order.args, **order.kwargs)
            elif self._has_plain_endpoints():
                await self._in_thread(instance.__init__, *order.args, **order.kwargs)
            else:
                instance.__init__(*order.args, **order.kwargs)
        except BaseException as error:
            raise self.fails_of(error) from error
        self.instance = instance
        self.runtime.ownership.owner_started(self.port, self.has_supervise())

    def _has_plain_endpoints(self) -> bool:
        return any(not member.is_async for member in endpoints_of(self.order.cls).values())

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _serve(self) -> None:
        """Serves messages until one says stop, and what goes on beside them."""
        served = 0
        while True:
            self.left.extend(self.engine.receive_nowait(self.port, _BATCH_MAX))
            if not self.left:
                self._woken = self.loop.create_future()
                # Something may have come in before the future was there to be woken.
                if not self.engine.is_ready(self.port):
                    await self._woken
                continue
            message = self.left.popleft()
            plan = self.plans.get(message.meta) or self.plan(message.meta)
            if plan.is_internal:
                if plan.name == STOP:
                    return await self._finish_tasks()
                if plan.name == READY:
                    self.answer(message, None)
                continue
            await self._handle(message, plan)
            self.check_wishes()
            if self.is_stop_wanted:
                return await self._finish_tasks()
            served += 1
            if served % _FAIRNESS == 0:
                await asyncio.sleep(0)

    async def _finish_tasks(self) -> None:
        while self.tasks and not self.ending.is_begun.is_set():
            await asyncio.wait(self.tasks, timeout=_LOOK_S)

    async def _handle(self, message: Message, plan: Plan) -> None:
        if self.cancelled and self.take_cancelled(message):
            return
        if plan.is_concurrent:
            task = self.loop.create_task(self._run(message, plan), name=plan.name)
            self.tasks[task] = message
            task.add_done_callback(self._task_done)
            return
        self._running = message
        try:
            await self._run(message, plan)
        finally:
            self._running = None
            self.served_count += 1

    async def _run(self, message: Message, plan: Plan) -> None:
        set_serving(self.serving(message, plan))
        try:
            args, kwargs = self.arguments(message, plan)
            if plan.is_async:
                value = await plan.function(self.instance, *args, **kwargs)
            else:
                value = await self._in_thread(plan.function, self.instance, *args, **kwargs)
        except asyncio.CancelledError as error:
            if not self._was_cancelled(message):
                self.settle_error(message, plan, error)
        except BaseException as error:
            self.settle_error(message, plan, error)
        else:
            if not plan.is_explicit:
                self.answer(message, value)

    def _was_cancelled(self, message: Message) -> bool:
        """Whether a caller's giving up, and not the endpoint itself, has cancelled the task."""
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling() == 0:
            return False
        task.uncancel()
        self.engine.answer(message, CANCELLED, b"")
        return True

    async def _in_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a plain function on this actor's thread, in this task's context."""
        if self._thread is None:
            self._thread = OwnThread(f"mesh-{self.name}")
        run = copy_context().run
        return await self._thread.run(lambda: run(function, *args, **kwargs))

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.pop(task, None)
        self.served_count += 1
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, ActorFailure):
            self.ending.begin(error)
            self.interrupt()

    def interrupt(self) -> None:
        """Cancels the endpoint that runs."""
        loop_thread().call(self._interrupt)

    def _interrupt(self) -> None:
        if self._running is not None:
            self._task.cancel()

    def running_messages(self) -> list[Message]:
        """Gives the messages that were taken from the mailbox and are not answered."""
        current = self._running or self.unanswered
        beside = [*list(self.tasks.values()), *list(self.left)]
        return beside if current is None else [current, *beside]

    def cancel(self, message: Message) -> None:
        """Ends the call that a caller has given up, or remembers that it need not start."""
        loop_thread().call(self._cancel, (message.from_proc, message.from_port))

    def _cancel(self, key: tuple[int, int]) -> None:
        running = self._running
        if running is not None and (running.from_proc, running.from_port) == key:
            self._task.cancel()
            return
        for task, message in self.tasks.items():
            if (message.from_proc, message.from_port) == key:
                task.cancel()
                return
        if any((m.from_proc, m.from_port) == key for m in self.left):
            self.cancelled.add(key)

    def supervise_soon(self, ask: Any) -> None:
        """Calls `__supervise__` at the next turn of the loop."""
        loop_thread().submit(self._supervise(ask))

    async def _supervise(self, ask: Any) -> None:
        set_serving(Serving(self, None, self.point.extent))
        method = type(self.instance).__supervise__
        if asyncio.iscoroutinefunction(method):
            await ask.run_async(lambda failure: method(self.instance, failure))
        else:
            await self._in_thread(ask.run, lambda failure: method(self.instance, failure))

    async def _end(self, spawn_message: Message) -> None:
        set_serving(Serving(self, None, self.point.extent))
        self.ending.begin(self.abort_error)
        error = self.ending.error
        cause = None if error is None else (error.__cause__ or error)
        if self.instance is None:
            self.answer_error(spawn_message, cause or MeshStopped(mesh_name=self.name))
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await run_beside(self.ending.stop_children)
        problem = await self._cleanup(cause)
        self.instance = None
        if self._thread is not None:
            self._thread.close()
        self.ending.finish(problem)

    async def _cleanup(self, cause: BaseException | None) -> BaseException | None:
        method = getattr(type(self.instance), "__cleanup__", None)
        if method is None:
            return None
        try:
            if asyncio.iscoroutinefunction(method):
                # Cancelled when it takes too long: nothing of the actor goes on behind its end.
                async with asyncio.timeout(effective().cleanup_timeout_s):
                    await method(self.instance, cause)
            else:
                await self._in_thread(method, self.instance, cause)
        except BaseException as problem:
            return problem
        return None
