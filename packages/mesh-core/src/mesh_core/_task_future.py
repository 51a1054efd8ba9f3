"""Futures of what processes are asked besides endpoints: to be ready, to stop."""

from __future__ import annotations

from typing import Any

from mesh_core._errors import MeshStopped, join_failures
from mesh_core._failure import as_itself, error_of
from mesh_core._future import _ERROR, _VALUE, CallFuture, Future
from mesh_core._runtime import value_of
from mesh_core._shape import Point
from mesh_core._wire import HOST_DIED, PROC_DIED, STOPPED

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from mesh_core._core import Message

__all__ = ["AgentFuture", "EndFuture"]

# What is gone need not be stopped.
_IS_ENDED = (STOPPED, PROC_DIED, HOST_DIED)


class _Question:
    """Stands where an endpoint would, in the texts of errors."""

    __slots__ = ("_mesh", "_options", "name")

    def __init__(self, mesh: Any, name: str) -> None:
        from mesh_core._endpoint import CallOptions

        self._mesh = mesh
        self._options = CallOptions()
        self.name = name


class AgentFuture(CallFuture[Any]):
    """Answers of all ranks, of which only failures count."""

    __slots__ = ("_is_stop", "_is_value", "_settled_value")

    def __init__(
        self,
        reply: int,
        mesh: Any,
        name: str,
        *,
        value: Any = None,
        is_stop: bool = False,
        is_value: bool = False,
    ) -> None:
        super().__init__(reply, _Question(mesh, name))  # type: ignore[arg-type]
        self._settled_value = value
        self._is_stop = is_stop
        self._is_value = is_value

    def _wait(self, timeout: float | None) -> None:
        # Agents answer on threads of their own, so an actor may wait for them whatever it serves.
        answers = self._engine.wait(self._reply, timeout)
        if answers is None:
            raise TimeoutError(f"no answer to {self._endpoint.name!r} in {timeout} s")
        self._take(answers)

    def _begin_wait(self) -> None:
        return None

    def _settle_with(self, answers: list[Message]) -> None:
        failures = []
        for message in answers:
            if message.code and not (
                self._is_stop and message.code in (STOPPED, PROC_DIED, HOST_DIED)
            ):
                error = as_itself(error_of(message, self._endpoint, is_given=not self._is_stop))
                if not (self._is_stop and isinstance(error, MeshStopped)):
                    extent = self._endpoint._mesh.extent
                    failures.append((Point(message.rank, extent), error))
        if failures:
            self._settle(_ERROR, join_failures(failures))
        elif self._is_value:
            self._settle(_VALUE, value_of(answers[0]))
        else:
            self._settle(_VALUE, self._settled_value)


class EndFuture(Future[None]):
    """Done when all of its parts are; then calls back, once."""

    __slots__ = ("_on_end", "_parts", "_task")

    def __init__(
        self, parts: Sequence[Future[Any]], on_end: Callable[[], object] | None = None
    ) -> None:
        self._start()
        self._parts = list(parts)
        self._on_end = on_end
        if not self._parts:
            self._finish()

    def _wait(self, timeout: float | None) -> None:
        import time

        until = None if timeout is None else time.monotonic() + timeout
        for part in self._parts:
            part.exception(None if until is None else max(until - time.monotonic(), 0.0))
        self._finish()

    def _poll(self) -> None:
        if all(part.done() for part in self._parts):
            self._finish()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        async def finish() -> None:
            for part in self._parts:
                if not part.done():
                    await part._ready()
            self._finish()

        self._task = asyncio.ensure_future(finish())

    def _finish(self) -> None:
        if self._state != 0:
            return
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
        errors = [part._outcome for part in self._parts if part._state == _ERROR]
        if errors:
            self._settle(_ERROR, errors[0])
        else:
            self._settle(_VALUE, None)

    def _give_up(self) -> bool:
        # What ends is not brought back.
        return False
