"""One call of a service: pickled once, and sent until a replica has accepted it."""

from __future__ import annotations

import time
from threading import get_ident
from typing import Any, TypeVar

from mesh_core._calls.coroutine_future import _TaskFuture, run_async
from mesh_core._calls.endpoint import CallOptions
from mesh_core._calls.event_loop import loop_thread
from mesh_core._calls.future import _ERROR, _PENDING, _VALUE, CallFuture, Future
from mesh_core._configuration.config import effective
from mesh_core._core import Full
from mesh_core._errors import DeadlockError, MeshStopped
from mesh_core._observability.events import recorder
from mesh_core._observability.trace_context import origin
from mesh_core._serialization.pickler import encode
from mesh_core._serialization.wire import CALL
from mesh_core._services.errors import SessionMoved
from mesh_core._services.replica_state import ReplicaFuture
from mesh_core._services.view import DRAINED

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from mesh_core._calls.deadlock import Wait
    from mesh_core._services.replica_state import Place
    from mesh_core._services.router import Router
    from mesh_core._services.session import Binding

__all__ = ["RouteFuture", "ServiceCall", "blocks_loop"]

R = TypeVar("R")


class ServiceCall:
    """The endpoint, arguments and deadline of a call.

    Attributes:
        name: The endpoint.
        timeout: The timeout of the call in seconds, or None.
        retries: The remaining number of retries after the loss of a replica.
        binding: The session to which the call belongs, if any.
    """

    __slots__ = ("_body", "_buffers", "_until", "binding", "name", "retries", "timeout")

    def __init__(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        *,
        retries: int = 0,
        binding: Binding | None = None,
    ) -> None:
        config = effective()
        self.name: str = name
        self.timeout = config.call_timeout_s if timeout is None else timeout
        self._until = None if self.timeout is None else time.monotonic() + self.timeout
        self.retries: int = retries
        self.binding: Binding | None = binding
        self._body, self._buffers = encode(args, kwargs, config.segment_threshold_bytes)
        if retries:
            self.keep()

    def keep(self) -> None:
        """Copy large arguments, which the caller may change once the call has returned."""
        self._buffers = [memoryview(bytes(buffer)) for buffer in self._buffers]

    def left_s(self) -> float | None:
        """Return the remaining seconds, or None without a deadline."""
        return None if self._until is None else max(self._until - time.monotonic(), 0.0)

    def send_to(
        self, place: Place, router: Router, kind: type[ReplicaFuture[Any]] = ReplicaFuture
    ) -> ReplicaFuture[Any]:
        """Call all actors of a replica.

        Raises:
            Full: Its mailbox is full of messages from this process.
        """
        mesh = place.mesh
        endpoint = getattr(mesh, self.name)
        left_s = self.left_s()
        if left_s is not None:
            endpoint = _timed(endpoint, self.timeout)
        reply = mesh._runtime.engine.call(
            CALL,
            mesh._targets,
            mesh._port,
            endpoint._meta,
            self._body,
            self._buffers,
            mesh._window,
            left_s,
            _refuse,
            origin() if recorder.is_on else None,
        )
        future = kind(reply, endpoint, router, place)
        router.began(reply, place)
        return future

    def broadcast_to(self, place: Place) -> None:
        """Send a message to all actors of a replica without requesting replies.

        Raises:
            Full: Its mailbox is full of messages from this process.
        """
        mesh = place.mesh
        endpoint = getattr(mesh, self.name)
        mesh._runtime.engine.send(
            CALL,
            mesh._targets,
            mesh._port,
            endpoint._meta,
            self._body,
            self._buffers,
            mesh._window,
            0,
            _refuse,
            origin() if recorder.is_on else None,
        )


def _refuse() -> bool:
    """Refuse to wait for capacity: another replica may have some."""
    raise Full


def _timed(endpoint: Any, timeout: float | None) -> Any:
    """Return an endpoint whose errors contain the timeout."""
    other = endpoint.options()
    other._options = CallOptions(timeout)
    return other


class RouteFuture(Future[R]):
    """The reply of the replica that accepts a call.

    It waits for capacity first, then for a replica, and possibly for another replica after that.
    """

    __slots__ = ("_inner", "_request", "_router")

    def __init__(self, router: Router, request: ServiceCall, sent: ReplicaFuture[R] | None) -> None:
        self._start()
        self._router: Router = router
        self._request: ServiceCall = request
        self._inner: Future[Any]
        if sent is None:
            router.enter_queue()
            request.keep()
            self._inner = self._queued(router.wait_for_capacity(request))
        else:
            self._inner = sent

    def _queued(self, waiting: Coroutine[Any, Any, ReplicaFuture[R]]) -> Future[ReplicaFuture[R]]:
        """Wait for capacity in the queue, which the call leaves at the end."""
        leave = self._router.leave_queue
        task: Any = run_async(loop_thread(), waiting)
        # The callback also runs if the coroutine is cancelled before it starts.
        task._running.add_done_callback(lambda _: leave())
        return task  # type: ignore[no-any-return]

    def _wait(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while self._state == _PENDING:
            inner = self._inner
            if isinstance(inner, _TaskFuture):
                refuse_to_block(self._request.name)
            try:
                inner.exception(None if until is None else max(until - time.monotonic(), 0.0))
            except TimeoutError:
                if not inner.done():
                    self._notice(inner)
                    raise
            self._poll()

    def _notice(self, inner: Future[Any]) -> None:
        """Let the router notice the reply although no thread waits for it now."""
        if isinstance(inner, ReplicaFuture):
            self._router.began_again(inner)

    def _poll(self) -> None:
        while self._state == _PENDING:
            inner = self._inner
            if not inner.done():
                return
            with self._router.turns:
                if self._inner is inner and self._state == _PENDING:
                    self._advance(inner)

    def _advance(self, inner: Future[Any]) -> None:
        error = inner._outcome if inner._state == _ERROR else None
        if not isinstance(inner, ReplicaFuture):
            if error is not None:
                self._settle(_ERROR, error)
            else:
                self._inner = inner._outcome
            return
        if error is None:
            self._settle(_VALUE, inner._outcome)
            return
        again = self._after(inner, error) if inner.is_lost() else None
        if again is None:
            self._settle(_ERROR, self._told(inner, error))
        else:
            self._router.enter_queue(is_again=True)
            self._inner = self._queued(again)

    def _after(
        self, inner: ReplicaFuture[Any], error: BaseException
    ) -> Coroutine[Any, Any, ReplicaFuture[Any]] | None:
        """Return the coroutine that repeats the call after the loss of a replica, or None."""
        inner.place.avoid(error)
        request, router = self._request, self._router
        router.awake()
        if request.binding is not None and request.binding.is_strict:
            return None
        if isinstance(error, MeshStopped):
            return _send_elsewhere(router, request, inner.place, error)
        if request.retries:
            request.retries -= 1
            return router.wait_for_capacity(request)
        return None

    def _told(self, inner: ReplicaFuture[Any], error: BaseException) -> BaseException:
        """Return the error for the caller; in a strict session, this is `SessionMoved`."""
        binding = self._request.binding
        if binding is None or not inner.is_lost() or not binding.is_strict:
            return error
        if binding.place is inner.place:
            self._router.unbind(binding)
        moved = SessionMoved(
            self._router.name, inner.place.id, endpoint=self._request.name, cause=error
        )
        moved.__traceback__ = error.__traceback__
        return moved

    def _begin_wait(self) -> Wait | None:
        inner = self._inner
        return inner._begin_wait() if isinstance(inner, CallFuture) else None

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._inner._ready().add_done_callback(lambda _: self._on_ready(loop))

    def _on_ready(self, loop: asyncio.AbstractEventLoop) -> None:
        self._poll()
        if self._state == _PENDING:
            self._watch(loop)

    def _give_up(self) -> bool:
        with self._router.turns:
            if self._state != _PENDING:
                return False
            return self._inner.cancel()


async def _send_elsewhere(
    router: Router, request: ServiceCall, place: Place, error: BaseException
) -> ReplicaFuture[Any]:
    """Send a call again that arrived too late at a replica, which has not started it."""
    await router.exchange()
    router.check_open()
    if router.retired.get(place.id) != DRAINED:
        if not request.retries:
            raise error
        request.retries -= 1
    return await router.wait_for_capacity(request)


def blocks_loop() -> bool:
    """Return whether this thread runs the event loop that routers need."""
    return get_ident() == loop_thread().thread.ident


def refuse_to_block(name: str) -> None:
    """Raise `DeadlockError` if waiting would block the event loop that the call needs."""
    if blocks_loop():
        raise DeadlockError(
            f"the event loop of this process is blocked while it waits for {name!r} of a service, "
            "which needs that loop: await the future instead of calling get()"
        )
