"""The calls of one process to a service, each to the replica with the least load.

A process has one router for each service, regardless of the number of handles. Calls go directly to
the replicas. While calls are made, the router exchanges a few numbers with the service several
times per second: it gets the list of replicas and the load of the other callers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextvars import Context
from copy import copy
from random import randrange, sample
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from mesh_core._calls.event_loop import loop_thread
from mesh_core._core import Full, ReadyQueue
from mesh_core._errors import DeadlineExceeded, MeshStopped
from mesh_core._runtime.runtime import Runtime, runtime
from mesh_core._services.errors import ServiceOverloaded, SessionMoved
from mesh_core._services.replica_state import Place
from mesh_core._services.view import DRAINED, Member, Report, ServiceView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._services.call import ServiceCall
    from mesh_core._services.replica_state import ReplicaFuture
    from mesh_core._services.session import Binding
    from mesh_core._services.view import ReportReply

__all__ = ["Limits", "Router", "router_of"]

# With more replicas or more than one caller, two random replicas are compared.
_COMPARED_MAX = 8
# A process without a call for this time stops reporting.
_IDLE_S = 2.0
# Used instead of the program's own limit for calls.
_EXCHANGE_TIMEOUT_S = 30.0


class Limits:
    """The limits that callers of a service apply.

    Attributes:
        outstanding_max: The maximum number of outstanding calls per replica.
        queue_len_max: The maximum number of queued calls per process.
        retries: The maximum number of retries of a call whose replica was lost, by endpoint.
        is_elastic: Whether the number of replicas follows the load.
    """

    __slots__ = ("is_elastic", "outstanding_max", "queue_len_max", "retries")

    def __init__(
        self,
        outstanding_max: int,
        queue_len_max: int,
        retries: dict[str, int],
        *,
        is_elastic: bool,
    ) -> None:
        self.is_elastic: bool = is_elastic
        self.outstanding_max: int = outstanding_max
        self.queue_len_max: int = queue_len_max
        self.retries: dict[str, int] = retries


class Router:
    """The calls of this process to one service."""

    def __init__(self, controller: Any, name: str, limits: Limits, view: ServiceView) -> None:
        self.controller: Any = controller
        self.name: str = name
        self.limits: Limits = limits
        self.places: dict[int, Place] = {}
        self.retired: dict[int, str] = {}
        self.version = -1
        self._caller = randrange(1 << 62)
        self._callers = 1
        self._error: BaseException | None = None
        # Reentrant, because replies and garbage-collected futures arrive on any thread, also while
        # the thread holds the lock.
        self._lock = threading.RLock()
        # Held while a call of this service moves from one replica to another.
        self.turns = threading.RLock()
        self._answered = ReadyQueue()
        self._under_way: dict[int, Place] = {}
        # Callers start with different replicas.
        self._next = self._caller
        self._sessions = 0
        # Calls that wait for capacity, oldest first; used on the event loop only.
        self._waiting: deque[tuple[ServiceCall, asyncio.Future[ReplicaFuture[Any]]]] = deque()
        self._queued = 0
        self._is_reading = False
        self._is_exchanging = False
        # Whether the service has sent no state since this process was idle.
        self.is_stale = True
        self._used_at = 0.0
        self._take(view)

    # Sending.

    def send(self, request: ServiceCall) -> ReplicaFuture[Any] | None:
        """Send a call to the replica with the least load; return None if none has capacity.

        Raises:
            SessionMoved: The replica of the call's session is gone.
            MeshStopped: The service was stopped.
        """
        self.awake()
        return None if self._queued else self._send(request)

    def _send(self, request: ServiceCall) -> ReplicaFuture[Any] | None:
        full: set[int] = set()
        while True:
            with self._lock:
                self._reap()
                self.check_open()
                # If stale, the known state may be as old as the previous call.
                place = None if self.is_stale else self._pick(request.binding, full)
                if place is None:
                    return None
                if place.has_lost_link():
                    place.avoid(None)
                    continue
                place.calls += 1
            try:
                future = request.send_to(place, self)
            except BaseException as error:
                with self._lock:
                    place.calls -= 1
                if not isinstance(error, Full):
                    raise
                full.add(place.id)
                continue
            return future

    def began(self, reply: int, place: Place) -> None:
        """Register a sent call, so that its reply is noticed even if no thread waits for it."""
        self._under_way[reply] = place
        self.controller._runtime.engine.notify(reply, self._answered)

    def began_again(self, future: ReplicaFuture[Any]) -> None:
        """Register a call again after a waiter has stopped waiting for its reply."""
        with self._lock:
            if future._reply in self._under_way:
                self.controller._runtime.engine.notify(future._reply, self._answered)

    def answered(self, reply: int, place: Place) -> None:
        """Unregister a call that has ended or whose reply is no longer needed."""
        with self._lock:
            if self._under_way.pop(reply, None) is not None:
                place.calls -= 1
        if self._queued:
            loop_thread().call(self._serve_waiting)

    def _reap(self) -> None:
        for reply in self._answered.take():
            place = self._under_way.pop(reply, None)
            if place is not None:
                place.calls -= 1

    # Selection, with the lock held.

    def _pick(self, binding: Binding | None, full: set[int]) -> Place | None:
        if binding is not None:
            return self._pick_bound(binding, full)
        usable = [p for p in self.places.values() if p.id not in full and p.is_usable()]
        count = len(usable)
        if count > 2 and (count > _COMPARED_MAX or self._callers > 1):
            # The load of other callers is outdated: callers that all used the best replica would
            # choose the same one.
            first, second = sample(usable, 2)
            better = first if first.load <= second.load else second
            if self._has_capacity(better):
                return better
        place = self._least(usable)
        return place if place is not None and self._has_capacity(place) else None

    def _least(self, usable: list[Place]) -> Place | None:
        """Return the replica with the least load; round-robin if several replicas have it."""
        if not usable:
            return None
        least = min(place.load for place in usable)
        best = [place for place in usable if place.load == least]
        self._next += 1
        return best[self._next % len(best)]

    def _has_capacity(self, place: Place) -> bool:
        return place.load < self.limits.outstanding_max

    def _has_unknown_end(self, place: Place) -> bool:
        """Return whether a replica is lost, was not stopped, and no call has failed there yet."""
        is_gone = self.places.get(place.id) is not place
        is_lost = is_gone and self.retired.get(place.id) != DRAINED
        return place.error is None and (is_lost or (place.is_open and not is_gone))

    def _pick_bound(self, binding: Binding, full: set[int]) -> Place | None:
        place = binding.place
        if place is not None and (self.places.get(place.id) is not place or not place.is_usable()):
            if binding.is_strict and place.id not in full and self._has_unknown_end(place):
                # The call fails with the reason, which the session passes on.
                return place
            self.unbind(binding)
            if binding.is_strict:
                raise SessionMoved(self.name, place.id, cause=place.error)
            place = None
        if place is None:
            usable = [p for p in self.places.values() if p.id not in full and p.is_usable()]
            if not usable:
                return None
            place = binding.place = min(usable, key=lambda p: p.session_load)
            place.sessions += 1
        return place if place.id not in full and self._has_capacity(place) else None

    def unbind(self, binding: Binding) -> None:
        """Release a session from its replica."""
        with self._lock:
            if binding.place is not None:
                binding.place.sessions -= 1
                binding.place = None

    def session_began(self, count: int) -> None:
        """Count a new session, or an ended one if `count` is negative."""
        with self._lock:
            self._sessions += count

    def open_places(self) -> list[Place]:
        """Return the replicas that accept calls, sorted by number."""
        self.check_open()
        with self._lock:
            return [self.places[id] for id in sorted(self.places) if self.places[id].is_open]

    def add_call(self, place: Place) -> None:
        """Count a call whose replica was not selected by the router."""
        with self._lock:
            place.calls += 1

    def drop_call(self, place: Place) -> None:
        """Undo `add_call`."""
        with self._lock:
            place.calls -= 1

    def known(self) -> ServiceView:
        """Return the state known to this process, as the initial state of another one."""
        with self._lock:
            members = [
                Member(place.id, place.mesh, place.is_open) for place in self.places.values()
            ]
            return ServiceView(self.version, tuple(members), dict(self.retired), False)

    # Waiting for capacity.

    def enter_queue(self, *, is_again: bool = False) -> None:
        """Enter the queue of calls that wait for capacity.

        Args:
            is_again: Whether the call has left the queue before; it is then not rejected.

        Raises:
            ServiceOverloaded: The queue is full.
        """
        with self._lock:
            is_full = self._queued >= self.limits.queue_len_max and not self.is_stale
            if is_full and not is_again:
                count = sum(place.is_usable() for place in self.places.values())
                limits = self.limits
                raise ServiceOverloaded(
                    self.name, count, limits.outstanding_max, limits.queue_len_max
                )
            self._queued += 1

    def leave_queue(self) -> None:
        """Leave the queue."""
        with self._lock:
            self._queued -= 1

    async def wait_for_capacity(self, request: ServiceCall) -> ReplicaFuture[Any]:
        """Send a call as soon as a replica has capacity, in the order of the queue.

        Raises:
            DeadlineExceeded: The timeout of the call has passed.
            MeshStopped: The service was stopped.
        """
        self.awake()
        sent: asyncio.Future[ReplicaFuture[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, sent))
        self._serve_waiting()
        try:
            async with asyncio.timeout(request.left_s()):
                return await sent
        except TimeoutError:
            raise DeadlineExceeded(request.name, request.timeout, self.name) from None

    def _serve_waiting(self) -> None:
        """Send the calls for which capacity is available; runs on the event loop."""
        left: deque[tuple[ServiceCall, asyncio.Future[ReplicaFuture[Any]]]] = deque()
        is_full = False
        while self._waiting:
            request, sent = self._waiting.popleft()
            if sent.done():
                continue
            try:
                # Once a call finds no capacity, only calls that are bound to a replica may find
                # some.
                future = None if is_full and request.binding is None else self._send(request)
            except BaseException as error:
                sent.set_exception(error)
                continue
            if future is None:
                is_full = is_full or request.binding is None
                left.append((request, sent))
            else:
                sent.set_result(future)
        self._waiting.extend(left)
        self._watch_answers(bool(left))

    def _watch_answers(self, is_wanted: bool) -> None:
        """Let replies wake the event loop while calls wait for capacity."""
        loop = loop_thread().loop
        if is_wanted and not self._is_reading:
            loop.add_reader(self._answered.fileno(), self._serve_waiting)
        elif not is_wanted and self._is_reading:
            loop.remove_reader(self._answered.fileno())
        self._is_reading = is_wanted

    # Exchange with the service.

    def awake(self) -> None:
        """Keep the router's state up to date until it is idle again."""
        self._used_at = time.monotonic()
        if not self._is_exchanging:
            with self._lock:
                if self._is_exchanging or self._error is not None:
                    return
                self._is_exchanging = True
            # A fresh context, because the exchange continues after the actor that called first is
            # gone.
            Context().run(loop_thread().submit, self._exchange_on())

    async def _exchange_on(self) -> None:
        try:
            while not self._is_idle():
                try:
                    await self.exchange(is_patient=not self.is_stale)
                except DeadlineExceeded:
                    # The service's process is busy. Its death would have been reported.
                    continue
                finally:
                    self._serve_waiting()
            # No other caller may wait for a report of this process.
            await self.exchange(is_last=True)
        except BaseException as error:
            self._fail(error)
            self._is_exchanging = False

    def _is_idle(self) -> bool:
        """Return whether the router is idle; if so, the next call restarts the exchange."""
        with self._lock:
            idle_s = time.monotonic() - self._used_at
            is_over = idle_s > _IDLE_S or self._error is not None
            is_idle = is_over and not (self._under_way or self._queued or self._sessions)
            self._is_exchanging = not is_idle
            self.is_stale = is_idle
            return is_idle

    async def exchange(self, *, is_patient: bool = False, is_last: bool = False) -> None:
        """Report the outstanding calls to the service and apply its changes.

        Args:
            is_patient: Whether the reply may be delayed until there are changes.
            is_last: Whether this is the last report of this process.
        """
        with self._lock:
            self._reap()
            loads = {p.id: (p.calls, p.sessions) for p in self.places.values()}
            report = Report(self._caller, self.version, loads, self._queued, is_last=is_last)
        exchange = self.controller.exchange.options(timeout=_EXCHANGE_TIMEOUT_S)
        answer: ReportReply = await exchange.call_one(report, is_patient)
        if answer.view is not None:
            self._take(answer.view)
        with self._lock:
            self.is_stale = is_last
            self._callers = answer.callers
            for place in self.places.values():
                place.other_calls, place.other_sessions = answer.loads.get(place.id, (0, 0))

    def _take(self, view: ServiceView) -> None:
        with self._lock:
            if view.version <= self.version:
                return
            self.version = view.version
            self.retired = view.retired
            places = {}
            for member in view.members:
                place = self.places.get(member.id)
                if place is None:
                    place = Place(member.id, member.mesh)
                place.is_open = member.is_open
                places[member.id] = place
            self.places = places
        if view.is_closed:
            self._fail(MeshStopped(mesh_name=self.name))

    def _fail(self, error: BaseException) -> None:
        """Mark the service as ended and fail its waiting and future calls."""
        if self._error is None:
            self._error = error
        loop_thread().call(self._serve_waiting)

    def check_open(self) -> None:
        """Raise the error with which the service has ended, if it has."""
        if self._error is not None:
            # Each caller gets a copy, because a traceback grows wherever its exception is raised.
            raise copy(self._error)


# Entries live as long as handles or outstanding calls.
_routers: WeakKeyDictionary[Runtime, WeakValueDictionary[int, Router]] = WeakKeyDictionary()
_routers_lock = threading.Lock()


def router_of(controller: Any, name: str, limits: Limits, view: ServiceView) -> Router:
    """Return the router of this process for a service, identified by its managing actor."""
    with _routers_lock:
        routers = _routers.setdefault(runtime(), WeakValueDictionary())
        router = routers.get(controller._port)
        if router is None:
            router = routers[controller._port] = Router(controller, name, limits, view)
        return router
