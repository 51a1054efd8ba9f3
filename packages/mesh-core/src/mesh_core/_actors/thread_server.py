"""Actors without `async` methods, which run on a separate thread without an event loop."""

from __future__ import annotations

import threading
from collections import deque

from mesh_core._actors.cell import ActorCell, ActorFailure
from mesh_core._actors.interrupt import CallerGone, Interruptible
from mesh_core._core import PortClosed
from mesh_core._errors import MeshStopped
from mesh_core._runtime.forked_child import leave_fork
from mesh_core._runtime.serving import Serving, set_serving
from mesh_core._serialization.wire import FREEZE, READY, STOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._actors.cell import Plan
    from mesh_core._core import Message

__all__ = ["ThreadCell"]

# Maximum number of messages taken at once, with one lock acquisition and one wake-up for all.
_BATCH_MAX = 64


class _Stopped(Exception):
    """The actor was requested to stop, or has requested it itself."""


class ThreadCell(ActorCell, Interruptible):
    """An actor that runs on a dedicated thread."""

    def start(self, spawn_message: Message) -> None:
        """Start the thread, which creates the instance."""
        self.spawn_message = spawn_message
        self.left: deque[Message] = deque()
        self.urgent: deque[Any] = deque()
        self._thawed = threading.Event()
        Interruptible.__init__(self)
        self.thread = threading.Thread(target=self._live, name=f"mesh-{self.name}", daemon=True)
        self.thread.start()

    def _live(self) -> None:
        self.ident = threading.get_ident()
        try:
            self._create()
            self.created()
            self._serve()
        except (_Stopped, ActorFailure, PortClosed):
            # The failure is in `abort_error`.
            pass
        self._end()

    def _create(self) -> None:
        request = self.request
        set_serving(Serving(self, None, self.point.extent))
        self.begin_owning()
        try:
            instance = request.moved
            if instance is None:
                instance = request.cls.__new__(request.cls, *request.args, **request.kwargs)
                instance.__init__(*request.args, **request.kwargs)
            if self.runtime.is_aborted:
                leave_fork(None)
        except BaseException as error:
            if self.runtime.is_aborted:
                leave_fork(error)
            raise self.fails_of(error) from error
        self.instance = instance

    def _serve(self) -> None:
        receive, port, left = self.engine.receive, self.port, self.left
        while True:
            if self.cancelled:
                # Calls cancelled here had left the mailbox, and all of those messages are done.
                self.cancelled.clear()
            left.extend(receive(port, _BATCH_MAX, None))
            while left:
                if self.urgent:
                    self._supervise_all()
                message = left.popleft()
                try:
                    self._handle(message)
                except CallerGone:
                    # The interruption arrived outside of the endpoint: no caller waits for the
                    # outcome, or the actor has to stop.
                    if self.is_stop_wanted:
                        self.unanswered = message
                    self.running = None
                    self.was_interrupted(message)
                    self._check_stop_requests()

    def _handle(self, message: Message) -> None:
        plan = self.plans.get(message.meta) or self.plan(message.meta)
        if plan.is_internal:
            return self._handle_internal(message, plan)
        # A canceller adds to `cancelled` and then reads `running`; this thread does it in reverse.
        self.running = message
        if self.cancelled and self.take_cancelled(message):
            self.running = None
            return None
        if self.is_stop_wanted:
            # A forced stop does not find a message between the mailbox and `running`.
            self.unanswered = message
            self.running = None
            if self.cancelling is not None:
                self.was_interrupted(message)
            raise _Stopped
        set_serving(self.serving(message, plan))
        try:
            args, kwargs = self.arguments(message, plan)
            value = plan.function(self.instance, *args, **kwargs)
            self.running = None
            if self.runtime.is_aborted:
                leave_fork(None)
        except BaseException as error:
            if self.runtime.is_aborted:
                leave_fork(error)
            self.running = None
            if self.cancelling is None or not self.was_interrupted(message):
                self.settle_error(message, plan, error)
            elif self.is_stop_wanted:
                self.unanswered = message
        else:
            if self.cancelling is not None:
                self.was_interrupted(message)
            if not plan.is_explicit:
                self.answer(message, value)
        self.served_count += 1
        if self.abort_error is not None or self.is_stop_wanted:
            self._check_stop_requests()
        return None

    def _check_stop_requests(self) -> None:
        self.check_stop_requests()
        if self.is_stop_wanted:
            raise _Stopped

    def _handle_internal(self, message: Message, plan: Plan) -> None:
        if plan.name == STOP:
            raise _Stopped
        if plan.name == READY:
            self.answer(message, None)
        if plan.name == FREEZE:
            self.is_frozen = True
            self._thawed.wait()
            self.is_frozen = False
            if self.is_stop_wanted:
                raise _Stopped
        if self.urgent:
            self._supervise_all()

    def freeze(self) -> None:
        """Make the actor wait, after it has served the messages that are queued now."""
        self._thawed.clear()
        self.queue_freeze()

    def thaw(self) -> None:
        """Let the actor continue."""
        self._thawed.set()

    def cancel(self, message: Message) -> None:
        """Cancel a running call, or record that a call that has not started must not start."""
        key = (message.from_proc, message.from_port)
        self.cancelled.add(key)
        if self.interrupt(key):
            self.cancelled.discard(key)

    def cut_short(self) -> None:
        """Raise `CallCancelled` in the running endpoint."""
        message = self.running
        if message is not None:
            self.interrupt((message.from_proc, message.from_port))
        self.thaw()

    def running_messages(self) -> list[Message]:
        """Return the messages that were taken from the mailbox and have no reply yet."""
        current = self.running or self.unanswered
        left = list(self.left)
        return left if current is None else [current, *left]

    def is_held_by(self, current: Serving) -> bool:
        """Return whether the actor waits if this thread, running in this context, waits."""
        return threading.get_ident() == self.ident

    def supervise_soon(self, ask: Any) -> None:
        """Call `__supervise__` between two messages."""
        self.urgent.append(ask)
        self.runtime.ownership.nudge(self.port)

    def _supervise_all(self) -> None:
        while self.urgent:
            ask = self.urgent.popleft()
            set_serving(Serving(self, None, self.point.extent))
            ask.run(lambda failure: self.instance.__supervise__(failure))

    def _end(self) -> None:
        set_serving(Serving(self, None, self.point.extent))
        self.ending.begin(self.abort_error)
        self.ending.reject(self.running_messages())
        error = self.ending.error
        cause = None if error is None else (error.__cause__ or error)
        if self.spawn_message is not None:
            self.answer_error(self.spawn_message, cause or MeshStopped(mesh_name=self.name))
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
            if self.runtime.is_aborted:
                leave_fork(problem)
            return problem
        if self.runtime.is_aborted:
            leave_fork(None)
        return None
