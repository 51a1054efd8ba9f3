"""Futures, which threads can wait for and event loops can await.

A future is a view of a port on which replies arrive. No code runs in the background to complete it:
a waiting thread reads the connections itself, and an event loop is woken through a dedicated file
descriptor. The thread that requests a value unpickles it.
"""

from __future__ import annotations

import math
import time
import traceback
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from mesh_core._calls.deadlock import begin_wait, check_wait, end_wait, waiter
from mesh_core._calls.event_loop import loop_thread, running_loop, runs_here, waker_of
from mesh_core._calls.silent_ranks import describe_silent
from mesh_core._errors import CallCancelled, DeadlockError, join_failures
from mesh_core._runtime.runtime import value_of
from mesh_core._shapes.shape import Extent, Point
from mesh_core._shapes.value_mesh import ValueMesh
from mesh_core._supervision.failure import error_of
from mesh_core._supervision.lifecycle import is_interactive

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from mesh_core._calls.deadlock import Wait
    from mesh_core._calls.endpoint import Endpoint
    from mesh_core._core import Engine, Message

__all__ = ["CallFuture", "Future", "GatherFuture", "checked_timeout"]

R = TypeVar("R")
_PENDING, _VALUE, _ERROR = range(3)
# How often a thread checks whether another thread that took the replies has processed them.
_SETTLE_PAUSE_S = 0.0002
_STILL_RUNS = (
    "the call of {!r} continues: get() of its future waits for it again, and cancel() ends it"
)


class Future(Generic[R]):
    """A value that becomes available later.

    `get()` blocks the current thread; `await` suspends the current task. Both may be used any
    number of times, on any thread.
    """

    __slots__ = ("__weakref__", "_outcome", "_state", "_traceback", "_watchers")

    def __init__(self) -> None:
        raise TypeError("futures are created by calls: use mesh.endpoint.call(...)")

    def get(self, timeout: float | None = None) -> R:
        """Wait for the value.

        Args:
            timeout: Maximum time to wait, in seconds. When it expires, the call continues, and
                `get` may be called again. By default there is no limit.

        Raises:
            TimeoutError: The timeout expired.
            ValueError: The timeout is negative or not finite.
            MeshError: The call failed; a remote exception is also an instance of its original type.
            KeyboardInterrupt: The user pressed Ctrl-C. The call continues, and `get` may be called
                again; `cancel` ends it.
        """
        if timeout is not None:
            checked_timeout(timeout)
        if self._state == _PENDING:
            self._wait(timeout)
        if self._state == _ERROR:
            __tracebackhide__ = True  # for pytest and IPython
            try:
                raise self._outcome.with_traceback(self._traceback)
            finally:
                # The traceback refers to this frame, so the exception would refer to the future.
                del self
        return self._outcome  # type: ignore[no-any-return]

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the exception that `get` would raise, or None.

        Raises:
            TimeoutError: The timeout expired.
        """
        if timeout is not None:
            checked_timeout(timeout)
        if self._state == _PENDING:
            self._wait(timeout)
        return self._outcome if self._state == _ERROR else None

    def done(self) -> bool:
        """Return whether `get` would return or raise immediately."""
        if self._state == _PENDING:
            self._poll()
        return self._state != _PENDING

    def cancel(self) -> bool:
        """Cancel the call, here and at the actor.

        A queued message is removed, a running `async` endpoint is cancelled, and a running plain
        endpoint gets `CallCancelled` at its next bytecode. Afterwards `get` raises `CallCancelled`.

        Returns:
            Whether the future was still pending.
        """
        if self.done() or not self._give_up():
            return False
        self._settle(_ERROR, CallCancelled("call was cancelled by its caller"))
        return True

    def cancelled(self) -> bool:
        """Return whether the call has ended because it was cancelled."""
        return self.done() and isinstance(self._outcome, CallCancelled)

    def add_done_callback(self, callback: Callable[[Future[R]], object]) -> None:
        """Call `callback` with this future when it is done, on a thread of Mesh.

        Callbacks that asyncio itself registers, for example in `asyncio.wait`, run on their event
        loop.
        """
        if self.done():
            callback(self)
            return
        call = _on_own_loop(callback)
        waiting = _callbacks.setdefault(self, [])
        waiting.append(callback)

        async def drive() -> None:
            await self._settled()
            if callback not in waiting:
                return
            waiting.remove(callback)
            try:
                call(self)
            except Exception:
                traceback.print_exc()

        loop_thread().submit(drive())

    def remove_done_callback(self, callback: Callable[[Future[R]], object]) -> int:
        """Remove a callback that was not called yet; return how often it was registered."""
        waiting = _callbacks.get(self, [])
        count = waiting.count(callback)
        for _ in range(count):
            waiting.remove(callback)
        return count

    def as_asyncio(self) -> asyncio.Future[R]:
        """Return an asyncio future of the running loop with the same outcome.

        Raises:
            RuntimeError: No event loop is running in this thread.
        """
        loop = running_loop()

        async def outcome() -> R:
            return await self

        return loop.create_task(outcome())

    def __await__(self) -> Generator[Any, None, R]:
        if self._state == _PENDING:
            self._poll()
        if self._state == _PENDING:
            wait = self._begin_wait()
            try:
                if self._state == _PENDING:
                    yield from self._ready()
            finally:
                if wait is not None:
                    end_wait(wait)
        if self._state == _ERROR:
            __tracebackhide__ = True  # for pytest and IPython
            try:
                raise self._outcome.with_traceback(self._traceback)
            finally:
                # The traceback refers to this frame, so the exception would refer to the future.
                del self
        return self._outcome  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        if not self.done():
            state = "pending"
        elif self._state == _ERROR:
            state = f"failed with {type(self._outcome).__name__}"
        else:
            state = "done"
        return f"<{type(self).__name__}{self._subject()}: {state}>"

    def _repr_html_(self) -> str:
        """Return the state, and the value once it is available, for notebooks."""
        # Only notebooks need it.
        from mesh_core._shapes.html_table import html_table  # noqa: PLC0415

        title = repr(self)
        if not self.done():
            return html_table(title, [], [["get() waits for the value, and so does await"]])
        show = getattr(self._outcome, "_repr_html_", None)
        if self._state == _VALUE and show is not None:
            return f"{html_table(title, [], [])}{show()}"
        return html_table(title, [], [[repr(self._outcome)]])

    def _subject(self) -> str:
        """Return a description of the operation behind the future, for its representation."""
        return ""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(
                f"a future has no {name!r}: wait for its value first, with .get() or await"
            )

    def __reduce__(self) -> Any:
        raise TypeError(
            "a future cannot be sent inside another object: pass it as an argument of its own to "
            "call, call_one or choose, or send its value, or a Port"
        )

    def _start(self) -> None:
        self._state = _PENDING
        self._outcome: Any = None
        # Futures of event loops that complete together with this one, and functions to call then.
        self._watchers: list[asyncio.Future[None] | Callable[[Future[R]], None]] | None = None

    def _settle(self, state: int, outcome: Any) -> None:
        if self._state != _PENDING:
            return
        if state == _ERROR:
            # Each raise extends the traceback, so `get` restores the original one every time.
            self._traceback = outcome.__traceback__
        self._outcome = outcome
        self._state = state
        if self._watchers is not None:
            for watcher in self._watchers:
                if callable(watcher):
                    watcher(self)
                else:
                    _wake(watcher)
            self._watchers = None

    def _call_when_settled(self, callback: Callable[[Future[R]], None]) -> None:
        """Call a function when the future is settled, on the thread that settles it.

        It is called immediately as well if another thread settles the future at the same time.
        """
        if self._watchers is None:
            self._watchers = [callback]
        else:
            self._watchers.append(callback)
        if self._state != _PENDING:
            callback(self)

    async def _settled(self) -> None:
        """Wait on an event loop until the future is done, without raising its exception."""
        if not self.done():
            await self._ready()

    def _ready(self) -> asyncio.Future[None]:
        """Return an asyncio future of the running loop that completes together with this one."""
        loop = running_loop()
        watcher: asyncio.Future[None] = loop.create_future()
        watchers = self._watchers
        if watchers is None:
            self._watchers = [watcher]
        else:
            # Remove watchers that were abandoned, for example because of a timeout.
            watchers[:] = [one for one in watchers if callable(one) or not one.done()]
            watchers.append(watcher)
        self._watch(loop)
        if self._state != _PENDING:
            # Another thread settled the future, perhaps before it could see the watcher.
            _finish(watcher)
        return watcher

    def _begin_wait(self) -> Wait | None:
        """Register the wait of a task; the task passes the result to `end_wait` when it resumes."""
        return None

    def _wait(self, timeout: float | None) -> None:
        """Block until the future is settled, or raise TimeoutError."""
        raise NotImplementedError

    def _poll(self) -> None:
        """Settle the future if this is possible without waiting."""
        raise NotImplementedError

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Arrange that the loop calls `_poll` when a result may be available."""
        raise NotImplementedError

    def _give_up(self) -> bool:
        """Cancel the work on the other side; return False if it is too late."""
        raise NotImplementedError


# Callbacks of pending futures, in the order of registration.
_callbacks: WeakKeyDictionary[Future[Any], list[Callable[[Future[Any]], object]]] = (
    WeakKeyDictionary()
)


def _on_own_loop(
    callback: Callable[[Future[Any]], object],
) -> Callable[[Future[Any]], object]:
    """Return a function that runs a callback from any thread; asyncio's own need their loop."""
    if not str(getattr(callback, "__module__", "")).startswith("asyncio."):
        return callback
    loop = running_loop()

    def call(future: Future[Any]) -> None:
        # No task of a closed loop waits for the future.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(callback, future)

    return call


def _wake(watcher: asyncio.Future[None]) -> None:
    """Complete the future of a loop, from any thread."""
    loop = watcher.get_loop()
    if runs_here(loop):
        _finish(watcher)
        return
    try:
        loop.call_soon_threadsafe(_finish, watcher)
    except RuntimeError:
        # The loop is closed, so no task awaits the future.
        return


def _finish(watcher: asyncio.Future[None]) -> None:
    if not watcher.done():
        watcher.set_result(None)


class CallFuture(Future[R]):
    """The reply of one actor."""

    __slots__ = ("_endpoint", "_guard", "_reply")

    def __init__(self, reply: int, endpoint: Endpoint[..., Any]) -> None:
        self._state = _PENDING
        self._outcome = None
        self._watchers = None
        self._reply = reply
        self._endpoint = endpoint
        # No `__del__`: an exception of a signal handler, such as `KeyboardInterrupt`, would be lost
        # in it.
        self._guard = endpoint._mesh._runtime.engine.guard(reply) if reply else None

    def _subject(self) -> str:
        return f" of {self._endpoint.name!r}"

    def _wait(self, timeout: float | None) -> None:
        engine = self._endpoint._mesh._runtime.engine
        try:
            if waiter() is None:
                answers = engine.wait(self._reply, timeout)
            else:
                answers = check_wait(engine, self._reply, self._endpoint, timeout)
        except DeadlockError as error:
            return self._fail(error)
        except KeyboardInterrupt as interrupt:
            if is_interactive():
                interrupt.add_note(_STILL_RUNS.format(self._endpoint.name))
            raise
        if answers is None:
            silent = describe_silent(self._endpoint._mesh, self._reply, timeout)
            text = f"no reply from endpoint {self._endpoint.name!r} in {timeout} s{silent}"
            recording = self._endpoint._mesh._runtime.recording
            if recording is not None:
                recording.timed_out(self._reply, text)
            raise TimeoutError(text)
        self._take(answers)
        return None

    @property
    def _engine(self) -> Engine:
        return self._endpoint._mesh._runtime.engine

    def _poll(self) -> None:
        engine = self._endpoint._mesh._runtime.engine
        if engine.is_ready(self._reply):
            self._take(engine.take(self._reply)[0])

    def _take(self, answers: list[Message]) -> None:
        if not answers:
            # Another thread has taken the replies, or cancelled the call, and is about to settle.
            while self._state == _PENDING:
                time.sleep(_SETTLE_PAUSE_S)
            return
        recording = self._endpoint._mesh._runtime.recording
        if recording is not None:
            answers = recording.replied(self._reply, answers)
        try:
            self._settle_with(answers)
        except BaseException as error:
            self._settle(_ERROR, error)

    def _settle_with(self, answers: list[Message]) -> None:
        message = answers[0]
        if message.code:
            self._settle(_ERROR, error_of(message, self._endpoint))
        else:
            self._settle(_VALUE, value_of(message))

    def _begin_wait(self) -> Wait | None:
        return None if waiter() is None else begin_wait(self)

    def _fail(self, error: BaseException) -> None:
        """Cancel the call and fail the future, unless the call has already ended."""
        if self._give_up():
            self._settle(_ERROR, error)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        waker_of(loop, self._engine).watch(self._reply, self._poll)

    def _give_up(self) -> bool:
        if self._engine.cancel(self._reply):
            return True
        self._take([])
        return False


class GatherFuture(CallFuture[ValueMesh[R]]):
    """The replies of all actors, by rank."""

    __slots__ = ("_return_exceptions",)

    def __init__(self, reply: int, endpoint: Endpoint[..., Any], return_exceptions: bool) -> None:
        super().__init__(reply, endpoint)
        self._return_exceptions = return_exceptions

    def _settle_with(self, answers: list[Message]) -> None:
        region = self._endpoint._mesh._region
        failed = [message for message in answers if message.code]
        if failed and not self._return_exceptions:
            extent = Extent(region.labels, region.sizes)
            failures = [(Point(m.rank, extent), error_of(m, self._endpoint)) for m in failed]
            first = failures[0][1]
            failures.sort(key=lambda failure: failure[0].rank)
            self._settle(_ERROR, join_failures(failures, first))
            return
        by_rank: list[Any] = [None] * len(answers)
        for message in answers:
            by_rank[message.rank] = message
        endpoint = self._endpoint

        def value_at(message: Message) -> Any:
            # Capture the endpoint instead of the future, which would keep the values alive in a
            # cycle.
            return error_of(message, endpoint) if message.code else value_of(message)

        self._settle(_VALUE, ValueMesh(region, by_rank, decode=value_at))


def checked_timeout(timeout: float) -> float:
    """Validate a timeout and return it.

    Raises:
        ValueError: The timeout is negative or not finite.
    """
    if not (timeout >= 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout {timeout} is not a finite number of seconds from 0 up")
    return timeout
