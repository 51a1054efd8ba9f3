"""Streams: the answers of one call, in the order in which they come.

A thread waits for the next answer before it gets a future. On an event loop, which must not wait,
the future comes first, and is the next answer once that has come.
"""

from __future__ import annotations

import time
from collections import deque
from threading import RLock
from typing import Any, Generic, TypeVar

from mesh_core._calls.deadlock import check_wait, waiter
from mesh_core._calls.event_loop import is_on_event_loop, waker_of
from mesh_core._calls.future import _PENDING, CallFuture
from mesh_core._errors import DeadlockError
from mesh_core._meshes.shape import Extent, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterator

    from mesh_core._calls.endpoint import Endpoint
    from mesh_core._calls.future import Future
    from mesh_core._core import Engine, Message

__all__ = ["AnswerStream", "stream_answers"]

R = TypeVar("R")


class AnswerStream(Generic[R]):
    """The answers of a call in the order in which they come."""

    __slots__ = (
        "_answers",
        "_endpoint",
        "_engine",
        "_hold",
        "_left",
        "_lock",
        "_promised",
        "_reply",
    )

    def __init__(self, reply: int, endpoint: Endpoint[..., Any]) -> None:
        self._reply = reply
        self._endpoint = endpoint
        self._engine = endpoint._mesh._runtime.engine
        self._hold = self._engine.hold(reply)
        self._left = len(endpoint._mesh._targets)
        # What has come and was not given away yet, last first.
        self._answers: list[Message] = []
        self._lock = RLock()
        # Futures that were given away before their answers have come.
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
        """Blocks until an answer has come; False when the time is over.

        Raises:
            DeadlockError: None can ever come.
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
            self._answers[:0] = answers[::-1]
        return True

    def _keep_promises(self) -> None:
        """Settles promised futures with what has come, without waiting."""
        engine, reply = self._engine, self._reply
        with self._lock:
            while self._promised:
                if not self._answers and engine.is_ready(reply):
                    self._answers = engine.take(reply)[0][::-1]
                if not self._answers:
                    return
                self._promised.popleft()._take([self._answers.pop()])

    def _arrived(self) -> None:
        """Settles promised futures from within an event loop, and is called again for the rest."""
        self._keep_promises()
        if self._promised:
            import asyncio

            self._watch(asyncio.get_running_loop())

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
        """Iterates over pairs of the answering rank and its future."""
        return RankedStream(self)

    async def _next_async(self) -> tuple[Point, Future[R]]:
        if not self._left:
            raise StopAsyncIteration
        import asyncio

        engine = self._engine
        loop = asyncio.get_running_loop()
        while not self._answers:
            await _arrival(loop, engine, self._reply)
            self._answers = engine.take(self._reply)[0][::-1]
        return self._pop()

    def __aiter__(self) -> AsyncIterator[R]:
        return self._values()

    async def _values(self) -> AsyncIterator[R]:
        while self._left:
            _, future = await self._next_async()
            yield await future


class PromisedFuture(CallFuture[R]):
    """The next answer of a stream to come, for an event loop that must not wait for it.

    Futures of one stream take answers in the order in which they were given away.
    """

    __slots__ = ("_stream",)

    def __init__(self, stream: AnswerStream[R]) -> None:
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
                    raise TimeoutError(f"no answer of {self._endpoint.name!r} in {timeout} s")
            except DeadlockError as error:
                return self._fail(error)
            self._poll()
        return None

    def _poll(self) -> None:
        self._stream._keep_promises()

    def _begin_wait(self) -> None:
        return None

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stream._watch(loop)

    def _give_up(self) -> bool:
        """Leaves the answer to the next future of the stream."""
        stream = self._stream
        with stream._lock:
            if self not in stream._promised:
                return False
            stream._promised.remove(self)
            stream._left += 1
            return True


class RankedStream(Generic[R]):
    """As `AnswerStream`, with the rank of each answer."""

    __slots__ = ("_stream",)

    def __init__(self, stream: AnswerStream[R]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[Point, Future[R]]]:
        return self

    def __next__(self) -> tuple[Point, Future[R]]:
        if self._stream._left and is_on_event_loop():
            raise RuntimeError(
                "the rank of an answer is known only when it has come, and waiting for it would "
                "block the event loop: use 'async for point, value in stream.with_ranks()'"
            )
        return self._stream._next_with_rank()

    def __aiter__(self) -> AsyncIterator[tuple[Point, R]]:
        return self._pairs()

    async def _pairs(self) -> AsyncIterator[tuple[Point, R]]:
        while self._stream._left:
            point, future = await self._stream._next_async()
            yield point, await future


def stream_answers(reply: int, endpoint: Endpoint[..., Any]) -> AnswerStream[Any]:
    """Turns the answers of a call into a stream."""
    endpoint._mesh._runtime.engine.set_stream(reply)
    return AnswerStream(reply, endpoint)


def _arrival(loop: asyncio.AbstractEventLoop, engine: Engine, reply: int) -> asyncio.Future[None]:
    """Gives a future of the loop that is done when an answer has come in."""
    arrived: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not arrived.done():
            arrived.set_result(None)

    waker_of(loop, engine).watch(reply, wake)
    return arrived
