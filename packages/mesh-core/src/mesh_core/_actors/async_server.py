"""Actors with `async` methods, which share the event loop of their process.

The `async` methods run on the event loop. Plain endpoints of such a class may block, so they run on
a separate thread of the actor. The actor still serves one message at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import copy_context
from threading import get_ident

from mesh_core._actors.cell import ActorCell, ActorFailure
from mesh_core._actors.interrupt import CallerGone, Interruptible
from mesh_core._calls.actor import endpoints_of
from mesh_core._calls.event_loop import loop_thread, waker_of
from mesh_core._calls.own_thread import OwnThread, run_beside
from mesh_core._configuration.config import effective
from mesh_core._core import PortClosed
from mesh_core._errors import MeshStopped
from mesh_core._runtime.forked_child import leave_fork
from mesh_core._runtime.serving import Serving, set_serving
from mesh_core._serialization.wire import CANCELLED, FREEZE, READY, STOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_core._actors.cell import Plan
    from mesh_core._core import Message

__all__ = ["LoopCell"]

_BATCH_MAX = 64
# After this many messages the actor yields to other tasks of the loop, even if more are queued.
_FAIRNESS = 64
# Interval at which an actor that waits for its concurrent endpoints checks for a forced stop.
_LOOK_S = 0.2


class LoopCell(ActorCell):
    """An actor that runs on the event loop of its process."""

    def start(self, spawn_message: Message) -> None:
        """Start the task of the actor, which creates the instance."""
        self.spawn_message = spawn_message
        self.left: deque[Message] = deque()
        self.tasks: dict[asyncio.Task[None], Message] = {}
        self._running: Message | None = None
        # Messages whose task was cancelled by this cell.
        self._interrupted: set[Message] = set()
        # The thread that runs plain endpoints.
        self._plain = Interruptible()
        self._woken: asyncio.Future[None] | None = None
        self._thawed = asyncio.Event()
        self._thread: OwnThread | None = None
        self.loop = loop_thread().loop
        loop_thread().call(self._begin)

    def _begin(self) -> None:
        self._task = self.loop.create_task(self._live(), name=f"mesh-{self.name}")

    async def _live(self) -> None:
        try:
            await self._create()
            self.created()
            waker_of(self.loop, self.engine).watch_always(self.port, self._wake)
            await self._serve()
        except (ActorFailure, PortClosed, asyncio.CancelledError):
            # The failure is in `abort_error`; a cancellation arrived too late for its message.
            pass
        waker_of(self.loop, self.engine).forget(self.port)
        await self._end()

    async def _create(self) -> None:
        request = self.request
        set_serving(Serving(self, None, self.point.extent))
        make: Any = request.cls
        self.begin_owning()
        try:
            instance = request.moved
            if instance is not None:
                self.instance = instance
                return
            instance = make.__new__(make, *request.args, **request.kwargs)
            if asyncio.iscoroutinefunction(make.__init__):
                await instance.__init__(*request.args, **request.kwargs)
            elif self._has_plain_endpoints():
                await self._in_thread(instance.__init__, *request.args, **request.kwargs)
            else:
                instance.__init__(*request.args, **request.kwargs)
        except BaseException as error:
            raise self.fails_of(error) from error
        self.instance = instance

    def _has_plain_endpoints(self) -> bool:
        return any(not member.is_async for member in endpoints_of(self.request.cls).values())

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _serve(self) -> None:
        """Serve messages until a stop message arrives, then finish the concurrent endpoints."""
        served = 0
        while True:
            if self.cancelled and not self.left:
                # Calls cancelled here had left the mailbox, and all of those messages are done.
                self.cancelled.clear()
            self.left.extend(self.engine.receive_nowait(self.port, _BATCH_MAX))
            if not self.left:
                # `_wake` runs between the steps of this task, so it sees the future.
                self._woken = self.loop.create_future()
                await self._woken
                continue
            if self.is_stop_wanted:
                # A forced stop does not find a message between the mailbox and `left`.
                return await self._finish_tasks()
            message = self.left.popleft()
            plan = self.plans.get(message.meta) or self.plan(message.meta)
            if plan.is_internal:
                if plan.name == STOP:
                    return await self._finish_tasks()
                if plan.name == READY:
                    self.answer(message, None)
                if plan.name == FREEZE:
                    self.is_frozen = True
                    await self._thawed.wait()
                    self.is_frozen = False
                continue
            await self._handle(message, plan)
            self.check_stop_requests()
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
            self._interrupted.discard(message)
            self.served_count += 1

    async def _run(self, message: Message, plan: Plan) -> None:
        set_serving(self.serving(message, plan))
        value: Any = None
        error: BaseException | None = None
        try:
            args, kwargs = self.arguments(message, plan)
            if plan.is_async:
                value = await plan.function(self.instance, *args, **kwargs)
            else:
                serve = self._serve_plain
                value, error = await self._outcome(serve, message, plan.function, args, kwargs)
        except BaseException as raised:
            error = raised
        if self.runtime.is_aborted:
            leave_fork(error)
        if self._was_cancelled(message, plan, error):
            return
        if isinstance(error, CallerGone):
            self._answer_cancelled(message)
        elif error is not None:
            self.settle_error(message, plan, error)
        elif not plan.is_explicit:
            self.answer(message, value)

    def _serve_plain(
        self,
        message: Message,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a plain endpoint on the thread for plain endpoints.

        Raises:
            CallerGone: The caller has cancelled the call.
        """
        thread = self._plain
        thread.ident = get_ident()
        try:
            thread.running = message
            if self.cancelled and self.take_cancelled(message):
                raise CallerGone
            value = function(self.instance, *args, **kwargs)
            thread.running = None
        except BaseException:
            thread.running = None
            if thread.cancelling is not None and thread.was_interrupted(message):
                raise CallerGone from None
            raise
        if thread.cancelling is not None and thread.was_interrupted(message):
            raise CallerGone
        return value

    def _was_cancelled(self, message: Message, plan: Plan, error: BaseException | None) -> bool:
        """Return whether the task of the call was cancelled; the task may continue afterwards."""
        # The lookup of the current task is a system call in Python 3.11.
        task = asyncio.current_task() if plan.is_concurrent else self._task
        assert task is not None
        if task.cancelling() == 0:
            return False
        while task.uncancel():
            pass
        # A `TaskGroup` cancels the task that waits for it and may leave that cancellation pending.
        if message not in self._interrupted and not isinstance(error, asyncio.CancelledError):
            return False
        self._interrupted.discard(message)
        self._answer_cancelled(message)
        return True

    def _answer_cancelled(self, message: Message) -> None:
        if self.ending.is_begun.is_set():
            self.ending.reject((message,))
        else:
            self.engine.reply(message, CANCELLED, b"")

    async def _in_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a plain function on the thread of this actor, in the context of this task."""
        value, error = await self._outcome(function, *args, **kwargs)
        if error is not None:
            raise error
        return value

    async def _outcome(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, BaseException | None]:
        """Like `_in_thread`, but return the exception of the function as a value.

        Some exceptions cannot pass through futures and coroutines.
        """
        if self._thread is None:
            self._thread = OwnThread(f"mesh-{self.name}")
        run = copy_context().run

        def outcome() -> tuple[Any, BaseException | None]:
            result, raised = None, None
            try:
                result = run(function, *args, **kwargs)
            except BaseException as error:
                raised = error
            if self.runtime.is_aborted:
                leave_fork(raised)
            return result, raised

        return await self._thread.run(outcome)

    def freeze(self) -> None:
        """Make the actor wait, after it has served the messages that are queued now."""
        loop_thread().call(self._thawed.clear)
        self.queue_freeze()

    def thaw(self) -> None:
        """Let the actor continue."""
        loop_thread().call(self._thawed.set)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        message = self.tasks.pop(task)
        self._interrupted.discard(message)
        if task.cancelled():
            # The task was cancelled before its first step.
            self._answer_cancelled(message)
            return
        self.served_count += 1
        error = task.exception()
        if isinstance(error, ActorFailure):
            self.is_stop_wanted = True
            self.ending.begin(error)
            self._cut_short()

    def cut_short(self) -> None:
        """Cancel the running endpoint; a plain endpoint gets `CallCancelled`."""
        loop_thread().call(self._cut_short)

    def _cut_short(self) -> None:
        running = self._running
        if running is not None:
            self._cancel((running.from_proc, running.from_port))
        self._thawed.set()

    def running_messages(self) -> list[Message]:
        """Return the messages that were taken from the mailbox and have no reply yet."""
        current = self._running or self.unanswered
        beside = [*list(self.tasks.values()), *list(self.left)]
        return beside if current is None else [current, *beside]

    def cancel(self, message: Message) -> None:
        """Cancel a running call, or record that a call that has not started must not start."""
        loop_thread().call(self._cancel, (message.from_proc, message.from_port))

    def _cancel(self, key: tuple[int, int]) -> None:
        # A plain endpoint that has not started on its thread yet finds the key here.
        self.cancelled.add(key)
        running = self._running
        if self._plain.interrupt(key):
            self.cancelled.discard(key)
        elif running is not None and (running.from_proc, running.from_port) == key:
            if self.plan(running.meta).is_async:
                self.cancelled.discard(key)
                self._interrupted.add(running)
                self._task.cancel()
        elif not any((m.from_proc, m.from_port) == key for m in self.left):
            self.cancelled.discard(key)
            for task, message in self.tasks.items():
                if (message.from_proc, message.from_port) == key:
                    self._interrupted.add(message)
                    task.cancel()

    def is_held_by(self, current: Serving) -> bool:
        """Return whether the actor waits if this thread, running in this context, waits."""
        if get_ident() == self._plain.ident:
            return self._plain.running is current.message
        return self.is_on_loop()

    def is_on_loop(self) -> bool:
        """Return whether the current thread is the event loop that the actor runs on."""
        return get_ident() == loop_thread().thread.ident

    def needs_loop(self) -> bool:
        """Return whether the actor serves messages on the event loop of its process."""
        return True

    def task_of(self, call: tuple[int, int] | None, is_exclusive: bool) -> asyncio.Task[Any] | None:
        """Return the task that serves a call; if it is exclusive, the main task of the actor."""
        if is_exclusive:
            return self._task
        for task, message in tuple(self.tasks.items()):
            if (message.from_proc, message.from_port) == call:
                return task
        return None

    def supervise_soon(self, ask: Any) -> None:
        """Call `__supervise__` in the next iteration of the loop."""
        loop_thread().submit(self._supervise(ask))

    async def _supervise(self, ask: Any) -> None:
        set_serving(Serving(self, None, self.point.extent))
        method = type(self.instance).__supervise__
        if asyncio.iscoroutinefunction(method):
            await ask.run_async(lambda failure: method(self.instance, failure))
        else:
            await self._in_thread(ask.run, lambda failure: method(self.instance, failure))

    async def _end(self) -> None:
        set_serving(Serving(self, None, self.point.extent))
        self.ending.begin(self.abort_error)
        self.ending.reject(self.running_messages())
        error = self.ending.error
        cause = None if error is None else (error.__cause__ or error)
        if self.spawn_message is not None:
            self.answer_error(self.spawn_message, cause or MeshStopped(mesh_name=self.name))
        for task, message in list(self.tasks.items()):
            self._interrupted.add(message)
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
                # Cancel a cleanup that takes too long, so that no code of the actor runs after its
                # end.
                async with asyncio.timeout(effective().cleanup_timeout_s):
                    await method(self.instance, cause)
            else:
                await self._in_thread(method, self.instance, cause)
        except BaseException as problem:
            return problem
        return None
