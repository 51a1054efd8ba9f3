"""Actors without `async`: each has a thread, and never hears of an event loop."""

from __future__ import annotations

import ctypes
import threading

from mesh_core._actor_cell import ActorCell, ActorFailure
from mesh_core._context import Serving, set_serving
from mesh_core._core import PortClosed
from mesh_core._errors import CallCancelled, MeshStopped
from mesh_core._wire import CANCELLED, READY, STOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from typing import Any

    from mesh_core._actor_cell import Plan
    from mesh_core._core import Message

__all__ = ["ThreadCell"]

# How many messages are taken at once: one lock and one wake-up for all of them.
_BATCH_MAX = 64


class _Stopped(Exception):
    """The actor was told to stop, or wants to."""


class ThreadCell(ActorCell):
    """An actor that runs on a thread of its own."""

    def start(self, spawn_message: Message) -> None:
        """Starts the thread; the actor is made there."""
        from collections import deque

        self.left: deque[Message] = deque()
        self.urgent: deque[Any] = deque()
        self._running: Message | None = None
        self._cancel_lock = threading.Lock()
        self.thread = threading.Thread(
            target=self._live, args=(spawn_message,), name=f"mesh-{self.name}", daemon=True
        )
        self.thread.start()

    def _live(self, spawn_message: Message) -> None:
        try:
            self._serve_to_end(spawn_message)
        except CallCancelled:
            # Meant for a message that ended in the same moment.
            pass
        self._disarm()
        self._end(spawn_message)

    def _serve_to_end(self, spawn_message: Message) -> None:
        try:
            self._create()
            self.answer(spawn_message, None)
            self._serve()
        except (_Stopped, ActorFailure, PortClosed):
            # What has failed is in `abort_error`.
            pass

    def _disarm(self) -> None:
        """Makes sure that no cancellation is still on its way to this thread."""
        while True:
            try:
                with self._cancel_lock:
                    self._running = None
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(threading.get_ident()), None
                    )
                return
            except CallCancelled:
                continue

    def _create(self) -> None:
        order = self.order
        set_serving(Serving(self, None, self.point.extent))
        try:
            instance = order.cls.__new__(order.cls, *order.args, **order.kwargs)
            instance.__init__(*order.args, **order.kwargs)
        except BaseException as error:
            raise self.fails_of(error) from error
        self.instance = instance
        self.runtime.ownership.owner_started(self.port, self.has_supervise())

    def _serve(self) -> None:
        receive, port, left = self.engine.receive, self.port, self.left
        while True:
            try:
                left.extend(receive(port, _BATCH_MAX, None))
                while left:
                    if self.urgent:
                        self._supervise_all()
                    self._handle(left.popleft())
            except CallCancelled:
                # Meant for a message that ended in the same moment.
                continue

    def _handle(self, message: Message) -> None:
        plan = self.plans.get(message.meta) or self.plan(message.meta)
        if plan.is_internal:
            return self._handle_internal(message, plan)
        if self.cancelled and self.take_cancelled(message):
            return None
        set_serving(self.serving(message, plan))
        self._running = message
        try:
            args, kwargs = self.arguments(message, plan)
            value = plan.function(self.instance, *args, **kwargs)
            self._running = None
        except CallCancelled as error:
            self._running = None
            self.engine.answer(message, CANCELLED, b"")
            del error
        except BaseException as error:
            self._running = None
            self.settle_error(message, plan, error)
        else:
            if not plan.is_explicit:
                self.answer(message, value)
        self.served_count += 1
        if self.abort_error is not None:
            raise self.abort_error
        if self.is_stop_wanted:
            raise _Stopped
        return None

    def _handle_internal(self, message: Message, plan: Plan) -> None:
        if plan.name == STOP:
            raise _Stopped
        if plan.name == READY:
            self.answer(message, None)
        if self.urgent:
            self._supervise_all()

    def cancel(self, message: Message) -> None:
        """Ends the call that a caller has given up, or remembers that it need not start."""
        key = (message.from_proc, message.from_port)
        with self._cancel_lock:
            running = self._running
            if running is None or (running.from_proc, running.from_port) != key:
                if any((m.from_proc, m.from_port) == key for m in list(self.left)):
                    self.cancelled.add(key)
                return
            self._raise_there()

    def interrupt(self) -> None:
        """Raises `CallCancelled` in the endpoint that runs."""
        with self._cancel_lock:
            if self._running is not None:
                self._raise_there()

    def _raise_there(self) -> None:
        ident = ctypes.c_ulong(self.thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(CallCancelled))

    def running_messages(self) -> list[Message]:
        """Gives the messages that were taken from the mailbox and are not answered."""
        current = self._running or self.unanswered
        left = list(self.left)
        return left if current is None else [current, *left]

    def supervise_soon(self, ask: Any) -> None:
        """Calls `__supervise__` between two messages."""
        self.urgent.append(ask)
        self.runtime.ownership.nudge(self.port)

    def _supervise_all(self) -> None:
        while self.urgent:
            ask = self.urgent.popleft()
            set_serving(Serving(self, None, self.point.extent))
            ask.run(lambda failure: self.instance.__supervise__(failure))

    def _end(self, spawn_message: Message) -> None:
        set_serving(Serving(self, None, self.point.extent))
        self.ending.begin(self.abort_error)
        error = self.ending.error
        cause = None if error is None else (error.__cause__ or error)
        if self.instance is None:
            self.answer_error(spawn_message, cause or MeshStopped(mesh_name=self.name))
        self.ending.stop_children()
        problem = self._cleanup(cause)
        self.instance = None
        self.ending.finish(problem)

    def _cleanup(self, cause: BaseException | None) -> BaseException | None:
        cleanup = getattr(self.instance, "__cleanup__", None)
        if cleanup is None:
            return None
        try:
            cleanup(cause)
        except BaseException as problem:
            return problem
        return None
