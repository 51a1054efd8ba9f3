"""A queue of futures in the order in which they become done, for a thread or an event loop.

Replies wake the queue through one file descriptor, so that waiting for many calls costs the same
as waiting for one.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from mesh_core._calls.deadlock import fail_if_stuck, waiter
from mesh_core._calls.event_loop import running_loop
from mesh_core._calls.future import CallFuture, Future
from mesh_core._configuration.config import effective
from mesh_core._core import ReadyQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio

    from mesh_core._core import Engine

__all__ = ["DoneQueue"]


class DoneQueue:
    """Yields futures when they are done. One thread, or the tasks of one event loop, may use it."""

    def __init__(self) -> None:
        self._pending: set[Future[Any]] = set()
        self._done: deque[Future[Any]] = deque()
        # Calls of one engine wake the queue directly; `_settled` is written for all other futures.
        self._engine: Engine | None = None
        self._by_port: dict[int, CallFuture[Any]] = {}
        self._replies = ReadyQueue()
        self._settled = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._collecting: int | None = None
        self._poll = select.poll()
        for descriptor in (self._replies.fileno(), self._settled):
            self._poll.register(descriptor, select.POLLIN)

    def __len__(self) -> int:
        """Return the number of futures that `next` has not returned yet."""
        return len(self._pending) + len(self._done)

    def __del__(self) -> None:
        os.close(self._settled)

    def add(self, future: Future[Any]) -> None:
        """Add a future; one that is already done is returned by a later call of `next`."""
        if future.done():
            self._done.append(future)
            return
        self._pending.add(future)
        future._call_when_settled(self._note)
        if isinstance(future, CallFuture) and type(future)._watch is CallFuture._watch:
            engine = future._engine
            if self._engine is None:
                self._engine = engine
            if engine is self._engine:
                self._by_port[future._reply] = future
                engine.notify(future._reply, self._replies)
                return
        future.add_done_callback(_drive)

    def _note(self, future: Future[Any]) -> None:
        """Record that a future is done; called by the future, on any thread and possibly twice."""
        try:
            self._pending.remove(future)
        except KeyError:
            return
        self._done.append(future)
        if self._collecting != threading.get_ident():
            os.eventfd_write(self._settled, 1)

    def next(self, timeout: float | None = None) -> Future[Any] | None:
        """Wait until a future is done, and return it.

        Returns:
            None if the timeout, in seconds, expires first, or no future is left.
        """
        until = None if timeout is None else time.monotonic() + timeout
        current = waiter()
        probe_s = effective().deadlock_probe_s
        if current is not None and timeout is None:
            fail_if_stuck(current, self._calls(), is_new=True)
        while not (found := self._take()) and self._pending:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            if current is not None and left is None:
                if not self._poll.poll(probe_s * 1000):
                    probe_s *= 2
                    fail_if_stuck(current, self._calls())
            else:
                self._poll.poll(None if left is None else left * 1000)
        return found

    async def next_async(self, limit_s: float | None = None) -> Future[Any] | None:
        """Like `next`, for a task of the running event loop; `limit_s` is its timeout."""
        loop = running_loop()
        until = None if limit_s is None else loop.time() + limit_s
        current = waiter()
        probe_s = effective().deadlock_probe_s
        while not (found := self._take()) and self._pending:
            left = None if until is None else until - loop.time()
            if left is not None and left <= 0:
                return None
            if current is None or left is not None:
                await self._readable(loop, left)
            elif not await self._readable(loop, probe_s):
                probe_s *= 2
                await loop.run_in_executor(None, fail_if_stuck, current, self._calls())
        return found

    async def _readable(self, loop: asyncio.AbstractEventLoop, limit_s: float | None) -> bool:
        woken: asyncio.Future[bool] = loop.create_future()

        def wake(is_readable: bool) -> None:
            if not woken.done():
                woken.set_result(is_readable)

        descriptors = (self._replies.fileno(), self._settled)
        for descriptor in descriptors:
            loop.add_reader(descriptor, wake, True)
        timer = None if limit_s is None else loop.call_later(limit_s, wake, False)
        try:
            return await woken
        finally:
            if timer is not None:
                timer.cancel()
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    def _take(self) -> Future[Any] | None:
        """Settle the calls whose replies have arrived, and return a future that is done."""
        if self._done:
            return self._done.popleft()
        self._collecting = threading.get_ident()
        for port in self._replies.take():
            future = self._by_port.get(port)
            if future is not None and future.done():
                del self._by_port[port]
        self._collecting = None
        with suppress(BlockingIOError):
            os.eventfd_read(self._settled)
        return self._done.popleft() if self._done else None

    def _calls(self) -> list[CallFuture[Any]]:
        return [one for one in self._pending if isinstance(one, CallFuture) and one._reply]


def _drive(_: Future[Any]) -> None:
    """Do nothing: a future with a callback settles without a thread that waits for it."""
