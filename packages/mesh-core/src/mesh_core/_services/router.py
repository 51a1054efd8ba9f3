"""How one process calls a service: it knows the replicas and sends to the one with the least load.

There is one router in a process for each service, whatever the number of handles. Calls go straight
to the replicas. While calls are made, the router exchanges a few numbers with the service several
times a second: who the replicas are, and what the other callers have under way there.
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
from mesh_core._program.runtime import Runtime, runtime
from mesh_core._services.errors import ServiceOverloaded, SessionMoved
from mesh_core._services.replica_state import Place
from mesh_core._services.view import Member, Report, Whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._services.call import Order
    from mesh_core._services.replica_state import ReplicaFuture
    from mesh_core._services.session import Binding
    from mesh_core._services.view import Answer

__all__ = ["Limits", "Router", "router_of"]

# With more replicas than this, or other callers, two are picked at random and compared.
_COMPARED_MAX = 8
# A process that has called nothing for so long says nothing more.
_IDLE_S = 2.0
# Instead of the limit that a program may have set for its own calls.
_EXCHANGE_TIMEOUT_S = 30.0


class Limits:
    """What callers of a service go by.

    Attributes:
        outstanding_max: How many calls a replica may have.
        queue_len_max: How many calls of one process may wait for room.
        retries: How often a call may be made again whose replica was lost, by endpoint.
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

    def __init__(self, keeper: Any, name: str, limits: Limits, whole: Whole) -> None:
        self.keeper: Any = keeper
        self.name: str = name
        self.limits: Limits = limits
        self.places: dict[int, Place] = {}
        self.retired: dict[int, str] = {}
        self.version = -1
        self._caller = randrange(1 << 62)
        self._callers = 1
        self._error: BaseException | None = None
        # Answers and collected futures come from any thread, also in the middle of what is below.
        self._lock = threading.RLock()
        # Held by who moves a call of this service on from one replica to another.
        self.turns = threading.RLock()
        self._answered = ReadyQueue()
        self._under_way: dict[int, Place] = {}
        # Callers do not all begin with the same one.
        self._next = self._caller
        self._sessions = 0
        # Calls that wait for room, oldest first: touched on the event loop only.
        self._waiting: deque[tuple[Order, asyncio.Future[ReplicaFuture[Any]]]] = deque()
        self._queued = 0
        self._is_reading = False
        self._is_exchanging = False
        # Whether nothing was heard from the service since this process was idle.
        self.is_stale = True
        self._used_at = 0.0
        self._take(whole)

    # Sending.

    def send(self, order: Order) -> ReplicaFuture[Any] | None:
        """Sends a call to the replica with the least load; gives None when none has room.

        Raises:
            SessionMoved: The replica of the call's session is gone.
            MeshStopped: The service was stopped.
        """
        self.awake()
        return None if self._queued else self._send(order)

    def _send(self, order: Order) -> ReplicaFuture[Any] | None:
        full: set[int] = set()
        while True:
            with self._lock:
                self._reap()
                self.check_open()
                # What is known may be as old as the latest call.
                place = None if self.is_stale else self._pick(order.binding, full)
                if place is None:
                    return None
                if place.has_lost_link():
                    place.shun(None)
                    continue
                place.calls += 1
            try:
                future = order.send_to(place, self)
            except BaseException as error:
                with self._lock:
                    place.calls -= 1
                if not isinstance(error, Full):
                    raise
                full.add(place.id)
                continue
            return future

    def began(self, reply: int, place: Place) -> None:
        """A call was sent: its answer is to be noticed, also when nobody waits for it."""
        self._under_way[reply] = place
        self.keeper._runtime.engine.notify(reply, self._answered)

    def began_again(self, future: ReplicaFuture[Any]) -> None:
        """Somebody has waited for an answer and given the wait up."""
        with self._lock:
            if future._reply in self._under_way:
                self.keeper._runtime.engine.notify(future._reply, self._answered)

    def answered(self, reply: int, place: Place) -> None:
        """A call has ended, or nobody wants its answer any more."""
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

    # Choosing, with the lock held.

    def _pick(self, binding: Binding | None, full: set[int]) -> Place | None:
        if binding is not None:
            return self._pick_bound(binding, full)
        usable = [p for p in self.places.values() if p.id not in full and p.is_usable()]
        count = len(usable)
        if count > 2 and (count > _COMPARED_MAX or self._callers > 1):
            # What is known of others is old: who all take the best of it take the same.
            first, second = sample(usable, 2)
            better = first if first.load <= second.load else second
            if self._has_room(better):
                return better
        place = self._least(usable)
        return place if place is not None and self._has_room(place) else None

    def _least(self, usable: list[Place]) -> Place | None:
        """Gives the one with the least load, by turns where several have it."""
        if not usable:
            return None
        least = min(place.load for place in usable)
        best = [place for place in usable if place.load == least]
        self._next += 1
        return best[self._next % len(best)]

    def _has_room(self, place: Place) -> bool:
        return place.load < self.limits.outstanding_max

    def _pick_bound(self, binding: Binding, full: set[int]) -> Place | None:
        place = binding.place
        if place is not None and (self.places.get(place.id) is not place or not place.is_usable()):
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
        return place if place.id not in full and self._has_room(place) else None

    def unbind(self, binding: Binding) -> None:
        """Frees a session from its replica."""
        with self._lock:
            if binding.place is not None:
                binding.place.sessions -= 1
                binding.place = None

    def session_began(self, count: int) -> None:
        """A session has begun, or has ended where the count is negative."""
        with self._lock:
            self._sessions += count

    def open_places(self) -> list[Place]:
        """Gives the replicas that take calls, by their numbers."""
        self.check_open()
        with self._lock:
            return [self.places[id] for id in sorted(self.places) if self.places[id].is_open]

    def add_call(self, place: Place) -> None:
        """Counts a call that was not picked a place for, but has one."""
        with self._lock:
            place.calls += 1

    def drop_call(self, place: Place) -> None:
        """Takes back what `add_call` has counted."""
        with self._lock:
            place.calls -= 1

    def known(self) -> Whole:
        """Gives what this process knows, for another one to begin with."""
        with self._lock:
            members = [
                Member(place.id, place.mesh, place.is_open) for place in self.places.values()
            ]
            return Whole(self.version, tuple(members), dict(self.retired), False)

    # Waiting for room.

    def enter_queue(self, *, is_again: bool = False) -> None:
        """Takes a place in the queue of those that wait for room.

        Args:
            is_again: The call had left it before: it is not turned away.

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
        """Gives the place in the queue back."""
        with self._lock:
            self._queued -= 1

    async def wait_for_room(self, order: Order) -> ReplicaFuture[Any]:
        """Sends a call as soon as there is room; calls with a place in the queue, in their order.

        Raises:
            DeadlineExceeded: The time of the call is over.
            MeshStopped: The service was stopped.
        """
        self.awake()
        sent: asyncio.Future[ReplicaFuture[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((order, sent))
        self._serve_waiting()
        try:
            async with asyncio.timeout(order.left_s()):
                return await sent
        except TimeoutError:
            raise DeadlineExceeded(order.name, order.timeout, self.name) from None

    def _serve_waiting(self) -> None:
        """Sends what has room now. Runs on the event loop."""
        left: deque[tuple[Order, asyncio.Future[ReplicaFuture[Any]]]] = deque()
        is_full = False
        while self._waiting:
            order, sent = self._waiting.popleft()
            if sent.done():
                continue
            try:
                # Where one call finds no room, only those that are bound to a replica may.
                future = None if is_full and order.binding is None else self._send(order)
            except BaseException as error:
                sent.set_exception(error)
                continue
            if future is None:
                is_full = is_full or order.binding is None
                left.append((order, sent))
            else:
                sent.set_result(future)
        self._waiting.extend(left)
        self._watch_answers(bool(left))

    def _watch_answers(self, is_wanted: bool) -> None:
        """Has the event loop woken by answers while somebody waits for room."""
        loop = loop_thread().loop
        if is_wanted and not self._is_reading:
            loop.add_reader(self._answered.fileno(), self._serve_waiting)
        elif not is_wanted and self._is_reading:
            loop.remove_reader(self._answered.fileno())
        self._is_reading = is_wanted

    # Exchanging numbers with the service.

    def awake(self) -> None:
        """Sees to it that the router knows what happens, from now on until it idles again."""
        self._used_at = time.monotonic()
        if not self._is_exchanging:
            with self._lock:
                if self._is_exchanging or self._error is not None:
                    return
                self._is_exchanging = True
            # It goes on when the actor that has called first is gone.
            Context().run(loop_thread().submit, self._exchange_on())

    async def _exchange_on(self) -> None:
        try:
            while not self._is_idle():
                try:
                    await self.exchange(is_patient=not self.is_stale)
                except DeadlineExceeded:
                    # Its process is busy, not dead: of that we would have heard.
                    continue
                finally:
                    self._serve_waiting()
            # Nobody is to wait for what this process might say.
            await self.exchange(is_last=True)
        except BaseException as error:
            self._fail(error)
            self._is_exchanging = False

    def _is_idle(self) -> bool:
        """Says whether nothing more is to be said; from then on somebody must begin anew."""
        with self._lock:
            idle_s = time.monotonic() - self._used_at
            is_over = idle_s > _IDLE_S or self._error is not None
            is_idle = is_over and not (self._under_way or self._queued or self._sessions)
            self._is_exchanging = not is_idle
            self.is_stale = is_idle
            return is_idle

    async def exchange(self, *, is_patient: bool = False, is_last: bool = False) -> None:
        """Tells the service what is under way, and hears what has changed.

        Args:
            is_patient: The answer may take a moment, until there is something to say.
            is_last: This process will say nothing more.
        """
        with self._lock:
            self._reap()
            loads = {p.id: (p.calls, p.sessions) for p in self.places.values()}
            report = Report(self._caller, self.version, loads, self._queued, is_last=is_last)
        exchange = self.keeper.exchange.options(timeout=_EXCHANGE_TIMEOUT_S)
        answer: Answer = await exchange.call_one(report, is_patient)
        if answer.whole is not None:
            self._take(answer.whole)
        with self._lock:
            self.is_stale = is_last
            self._callers = answer.callers
            for place in self.places.values():
                place.other_calls, place.other_sessions = answer.loads.get(place.id, (0, 0))

    def _take(self, whole: Whole) -> None:
        with self._lock:
            if whole.version <= self.version:
                return
            self.version = whole.version
            self.retired = whole.retired
            places = {}
            for member in whole.members:
                place = self.places.get(member.id)
                if place is None:
                    place = Place(member.id, member.mesh)
                place.is_open = member.is_open
                places[member.id] = place
            self.places = places
        if whole.is_closed:
            self._fail(MeshStopped(mesh_name=self.name))

    def _fail(self, error: BaseException) -> None:
        """The service is no more: who waits is told, and who calls."""
        if self._error is None:
            self._error = error
        loop_thread().call(self._serve_waiting)

    def check_open(self) -> None:
        """Raises what the service has ended with, if it has ended."""
        if self._error is not None:
            # Each has its own: a traceback grows with every place that one is raised at.
            raise copy(self._error)


# As long as there are handles, or calls under way.
_routers: WeakKeyDictionary[Runtime, WeakValueDictionary[int, Router]] = WeakKeyDictionary()
_routers_lock = threading.Lock()


def router_of(keeper: Any, name: str, limits: Limits, whole: Whole) -> Router:
    """Gives the router of this process for a service, by the actor that keeps it."""
    with _routers_lock:
        routers = _routers.setdefault(runtime(), WeakValueDictionary())
        router = routers.get(keeper._port)
        if router is None:
            router = routers[keeper._port] = Router(keeper, name, limits, whole)
        return router
