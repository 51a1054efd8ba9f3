"""Streams: the replies of one call, in the order in which they arrive.

A thread waits for the next reply before it gets a future. An event loop must not wait, so there the
future is created first and completes with the next reply to arrive.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Generic, TypeVar

from mesh_core._calls.deadlock import check_wait, waiter
from mesh_core._calls.event_loop import is_on_event_loop, running_loop, waker_of
from mesh_core._calls.future import _PENDING, CallFuture
from mesh_core._errors import DeadlockError
from mesh_core._shapes.shape import Extent, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterator

    from mesh_core._calls.endpoint import Endpoint
    from mesh_core._calls.future import Future
    from mesh_core._core import Engine, Message

__all__ = ["ReplyStream", "stream_replies"]

R = TypeVar("R")


class ReplyStream(Generic[R]):
    """The replies of a call in the order in which they arrive."""

    __slots__ = (
        "_answers",
        "_endpoint",
        "_engine",
        "_guard",
        "_left",
        "_lock",
        "_promised",
        "_reply",
    )

    def __init__(self, reply: int, endpoint: Endpoint[..., Any]) -> None:
        self._reply = reply
        self._endpoint = endpoint
        self._engine = endpoint._mesh._runtime.engine
        self._guard = self._engine.guard(reply)
        self._left = len(endpoint._mesh._targets)
        # Replies that have arrived and were not yielded yet, in reverse order.
        self._answers: list[Message] = []
        self._lock = threading.RLock()
        # Futures that were yielded before their replies arrived.
        self._promised: deque[PromisedFuture[R]] = deque()

    def __len__(self) -> int:
        return self._left

    def __iter__(self) -> Iterator[Future[R]]:
        return self

    def __next__(self) -> Future[R]:
        if self._left and is_on_event_loop():
            self._left -= 1
            return PromisedFuture(self)
        return self._next_with_rank()[1]

    def _next_with_rank(self) -> tuple[Point, Future[R]]:
        if not self._left:
            raise StopIteration
        while not self._answers:
            self._wait(None)
        return self._pop()

    def _wait(self, timeout: float | None) -> bool:
        """Block until a reply has arrived; return False if the timeout expires first.

        Raises:
            DeadlockError: No reply can ever arrive.
        """
        engine, reply = self._engine, self._reply
        answers = (
            engine.wait(reply, timeout)
            if waiter() is None
            else check_wait(engine, reply, self._endpoint, timeout, needs_all=False)
        )
        if answers is None:
            return False
        with self._lock:
            self._answers[:0] = self._recorded(answers)[::-1]
        return True

    def _recorded(self, answers: list[Message]) -> list[Message]:
        """Record the replies if the actor that takes them is recorded."""
        recording = self._endpoint._mesh._runtime.recording
        return answers if recording is None else recording.replied(self._reply, answers)

    def _settle_promised(self) -> None:
        """Settle promised futures with the replies that have arrived, without waiting."""
        engine, reply = self._engine, self._reply
        with self._lock:
            while self._promised:
                if not self._answers and engine.is_ready(reply):
                    self._answers = self._recorded(engine.take(reply)[0])[::-1]
                if not self._answers:
                    return
                self._promised.popleft()._take([self._answers.pop()])

    def _arrived(self) -> None:
        """Settle promised futures on an event loop, and register again if any are left."""
        self._settle_promised()
        if self._promised:
            self._watch(running_loop())

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        waker_of(loop, self._engine).watch(self._reply, self._arrived)

    def _pop(self) -> tuple[Point, Future[R]]:
        self._left -= 1
        message = self._answers.pop()
        future: CallFuture[R] = CallFuture(0, self._endpoint)
        future._take([message])
        region = self._endpoint._mesh._region
        return Point(message.rank, Extent(region.labels, region.sizes)), future

    def with_ranks(self) -> RankedStream[R]:
        """Return an iterator over pairs of the replying rank and its future."""
        return RankedStream(self)

    async def _next_async(self) -> tuple[Point, Future[R]]:
        if not self._left:
            raise StopAsyncIteration
        engine = self._engine
        loop = running_loop()
        while not self._answers:
            await _arrival(loop, engine, self._reply)
            self._answers = self._recorded(engine.take(self._reply)[0])[::-1]
        return self._pop()

    def __aiter__(self) -> AsyncIterator[R]:
        return self._values()

    async def _values(self) -> AsyncIterator[R]:
        while self._left:
            _, future = await self._next_async()
            yield await future


class PromisedFuture(CallFuture[R]):
    """The next reply of a stream, on an event loop, which must not block until it arrives.

    Futures of one stream get replies in the order in which the futures were yielded.
    """

    __slots__ = ("_stream",)

    def __init__(self, stream: ReplyStream[R]) -> None:
        super().__init__(0, stream._endpoint)
        self._stream = stream
        stream._promised.append(self)

    def _wait(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        self._poll()
        while self._state == _PENDING:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            try:
                if not self._stream._wait(left):
                    raise TimeoutError(f"no reply from {self._endpoint.name!r} in {timeout} s")
            except DeadlockError as error:
                return self._fail(error)
            self._poll()
        return None

    def _poll(self) -> None:
        self._stream._settle_promised()

    def _begin_wait(self) -> None:
        return None

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stream._watch(loop)

    def _give_up(self) -> bool:
        """Leave the reply to the next future of the stream."""
        stream = self._stream
        with stream._lock:
            if self not in stream._promised:
                return False
            stream._promised.remove(self)
            stream._left += 1
            return True


class RankedStream(Generic[R]):
    """Like `ReplyStream`, with the rank of each reply."""

    __slots__ = ("_stream",)

    def __init__(self, stream: ReplyStream[R]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[Point, Future[R]]]:
        return self

    def __next__(self) -> tuple[Point, Future[R]]:
        if self._stream._left and is_on_event_loop():
            raise RuntimeError(
                "the rank of a reply is known only when it arrives, and waiting for it would "
                "block the event loop: use 'async for point, value in stream.with_ranks()'"
            )
        return self._stream._next_with_rank()

    def __aiter__(self) -> AsyncIterator[tuple[Point, R]]:
        return self._pairs()

    async def _pairs(self) -> AsyncIterator[tuple[Point, R]]:
        while self._stream._left:
            point, future = await self._stream._next_async()
            yield point, await future


def stream_replies(reply: int, endpoint: Endpoint[..., Any]) -> ReplyStream[Any]:
    """Create a stream of the replies of a call."""
    endpoint._mesh._runtime.engine.set_stream(reply)
    return ReplyStream(reply, endpoint)


def _arrival(loop: asyncio.AbstractEventLoop, engine: Engine, reply: int) -> asyncio.Future[None]:
    """Return a future of the loop that completes when a reply has arrived."""
    arrived: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not arrived.done():
            arrived.set_result(None)

    waker_of(loop, engine).watch(reply, wake)
    return arrived
