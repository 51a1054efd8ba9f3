"""Futures of requests to processes other than endpoint calls: to become ready, or to stop."""

from __future__ import annotations

import time
from typing import Any

from mesh_core._calls.endpoint import CallOptions
from mesh_core._calls.future import _ERROR, _PENDING, _VALUE, CallFuture, Future
from mesh_core._calls.silent_ranks import describe_silent
from mesh_core._errors import DeadlineExceeded, MeshStopped, join_failures
from mesh_core._runtime.runtime import value_of
from mesh_core._serialization.wire import ACTOR_FAILED, HOST_DIED, PROC_DIED, RAISED, STOPPED
from mesh_core._shapes.shape import Point
from mesh_core._supervision.failure import as_itself, error_in, error_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Sequence

    from mesh_core._core import Message
    from mesh_core._supervision.ownership import Ownership

__all__ = ["AgentFuture", "EndFuture", "HostStopFuture", "ReadyFuture", "StopFuture"]


class _RequestEndpoint:
    """Substitute for an `Endpoint` in error messages about such requests."""

    __slots__ = ("_mesh", "_options", "name")

    def __init__(self, mesh: Any, name: str) -> None:
        self._mesh = mesh
        self._options = CallOptions()
        self.name = name


class AgentFuture(CallFuture[Any]):
    """Replies of the agents of all ranks; only failures matter."""

    __slots__ = ("_is_value", "_settled_value")

    def __init__(
        self,
        reply: int,
        mesh: Any,
        name: str,
        *,
        value: Any = None,
        is_value: bool = False,
    ) -> None:
        super().__init__(reply, _RequestEndpoint(mesh, name))  # type: ignore[arg-type]
        self._settled_value = value
        self._is_value = is_value

    def _wait(self, timeout: float | None) -> None:
        # Agents reply on separate threads, so an actor may wait for them while it serves any
        # message.
        answers = self._engine.wait(self._reply, timeout)
        if answers is None:
            silent = describe_silent(self._endpoint._mesh, self._reply, timeout)
            raise TimeoutError(f"no reply from {self._endpoint.name!r} in {timeout} s{silent}")
        self._take(answers)

    def _begin_wait(self) -> None:
        return None

    def _settle_with(self, answers: list[Message]) -> None:
        failures = []
        for message in answers:
            error = self._error_in(message)
            if error is not None:
                failures.append((Point(message.rank, self._endpoint._mesh.extent), error))
        if failures:
            self._settle(_ERROR, join_failures(failures))
        elif self._is_value:
            self._settle(_VALUE, value_of(answers[0]))
        else:
            self._settle(_VALUE, self._settled_value)

    def _error_in(self, message: Message) -> BaseException | None:
        if not message.code:
            return None
        return as_itself(error_of(message, self._endpoint))


class ReadyFuture(AgentFuture):
    """Completes when `bootstrap` or `__init__` has ended on every rank.

    Both may wait for the actor that waits for this future. Such a cycle raises an error, like a
    cycle of calls.
    """

    __slots__ = ()
    _wait = CallFuture._wait
    _begin_wait = CallFuture._begin_wait  # type: ignore[assignment]


class HostStopFuture(AgentFuture):
    """Outcome of stopping processes through their hosts; a dead host counts as stopped."""

    __slots__ = ()

    def _error_in(self, message: Message) -> BaseException | None:
        return None if message.code == HOST_DIED else super()._error_in(message)


class StopFuture(AgentFuture):
    """Outcome of stopping the actors of a mesh.

    A failure is raised only if the owner, which stops the mesh, was not notified of it before the
    stop.
    """

    __slots__ = ("_is_forced",)

    def __init__(self, reply: int, mesh: Any, *, is_forced: bool = False) -> None:
        super().__init__(reply, mesh, "stop")
        # Whether the processes exit with their actors, so that late actors leave nothing behind.
        self._is_forced = is_forced

    def _error_in(self, message: Message) -> BaseException | None:
        if message.code in (STOPPED, HOST_DIED):
            return None
        stop_watch = self._endpoint._mesh._runtime.stop_watch
        if message.code == PROC_DIED and not stop_watch.has_ended(self._reply, message.from_proc):
            return None
        if message.code:
            error = as_itself(error_of(message, self._endpoint, is_given=False))
            return None if isinstance(error, MeshStopped) else error
        failure, problem = value_of(message)
        mesh = self._endpoint._mesh
        if failure is not None and mesh._runtime.ownership.is_new_failure(
            mesh._uid, message.rank, failure
        ):
            return error_in(failure, ACTOR_FAILED, message, self._endpoint, is_given=False)
        if problem is None:
            return None
        error = as_itself(error_in(problem, RAISED, message, self._endpoint))
        is_quiet = isinstance(error, MeshStopped)
        is_quiet = is_quiet or (self._is_forced and isinstance(error, DeadlineExceeded))
        return None if is_quiet else error


class EndFuture(Future[None]):
    """Completes when all of its parts are done, and then calls `on_end` once."""

    __slots__ = ("_on_end", "_ownership", "_parts", "_task")

    def __init__(
        self,
        parts: Sequence[Future[Any]],
        ownership: Ownership | None,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._start()
        self._parts = list(parts)
        self._ownership = ownership
        self._on_end = on_end
        if not self._parts:
            self._finish()

    def get(self, timeout: float | None = None) -> None:
        """See `Future.get`; a failure that it raises is not reported to anyone else."""
        self.exception(timeout)
        super().get()

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`; a failure that it returns is not reported to anyone else."""
        error = super().exception(timeout)
        self._give()
        return error

    def __await__(self) -> Generator[Any, None, None]:
        try:
            yield from super().__await__()
        finally:
            self._give()

    def outcome(self) -> BaseException | None:
        """Wait and return the error without marking it as observed; the caller must report it."""
        return super().exception()

    def _give(self) -> None:
        if self._state == _ERROR and self._ownership is not None:
            for _, error in _failures_of(self._outcome):
                failure_id = error.__dict__.get("_failure_id")
                if failure_id:
                    self._ownership.observed(failure_id)

    def _wait(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        for part in self._parts:
            if part._state == _PENDING:
                part._wait(None if until is None else max(until - time.monotonic(), 0.0))
        self._finish()

    def _poll(self) -> None:
        if all(part.done() for part in self._parts):
            self._finish()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        async def finish() -> None:
            for part in self._parts:
                if not part.done():
                    await part._ready()
            self._finish()

        self._task = loop.create_task(finish())

    def _finish(self) -> None:
        if self._state != 0:
            return
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
        errors = [part._outcome for part in self._parts if part._state == _ERROR]
        if errors:
            failures = [failure for error in errors for failure in _failures_of(error)]
            self._settle(_ERROR, join_failures(failures, errors[0]))
        else:
            self._settle(_VALUE, None)

    def _give_up(self) -> bool:
        # A stop cannot be cancelled.
        return False


def _failures_of(error: BaseException) -> tuple[tuple[Any, BaseException], ...]:
    """Return the failures of all ranks that an error represents, with their positions."""
    found: tuple[tuple[Any, BaseException], ...] = error.__dict__.get(
        "_mesh_failures", ((None, error),)
    )
    return found
