"""Waiting for several futures: as they complete, or until some are done."""

from __future__ import annotations

import time
from typing import Any, Generic, NamedTuple, TypeVar

from mesh_core._calls.done_queue import DoneQueue
from mesh_core._calls.event_loop import is_on_event_loop
from mesh_core._calls.future import Future, checked_timeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

__all__ = ["CompletedFutures", "WaitResult", "as_completed", "wait"]

R = TypeVar("R")


class WaitResult(NamedTuple, Generic[R]):
    """The result of `wait`."""

    done: list[Future[R]]
    """The futures that are done, in the order of completion."""
    pending: list[Future[R]]
    """The other futures, in the order in which they were passed."""


class CompletedFutures(Generic[R]):
    """The futures of `as_completed`, for `for` and `async for`."""

    def __init__(self, futures: Iterable[Future[R]], timeout: float | None) -> None:
        self._queue = _queue_of(futures)
        self._until = None if timeout is None else time.monotonic() + checked_timeout(timeout)
        self._timeout = timeout

    def __len__(self) -> int:
        """Return the number of futures that were not yielded yet."""
        return len(self._queue)

    def __iter__(self) -> Iterator[Future[R]]:
        return self

    def __next__(self) -> Future[R]:
        if is_on_event_loop():
            raise RuntimeError(
                "waiting for a future would block the event loop: use 'async for' with as_completed"
            )
        if not len(self._queue):
            raise StopIteration
        found = self._queue.next(self._left())
        return self._checked(found)

    def __aiter__(self) -> AsyncIterator[Future[R]]:
        return self

    async def __anext__(self) -> Future[R]:
        if not len(self._queue):
            raise StopAsyncIteration
        found = await self._queue.next_async(self._left())
        return self._checked(found)

    def _left(self) -> float | None:
        return None if self._until is None else max(self._until - time.monotonic(), 0.0)

    def _checked(self, found: Future[R] | None) -> Future[R]:
        if found is None:
            raise TimeoutError(f"{len(self)} futures are not done after {self._timeout} s")
        return found


def as_completed(futures: Iterable[Future[R]], timeout: float | None = None) -> CompletedFutures[R]:
    """Yield futures in the order in which they become done, with `for` or `async for`.

    Args:
        futures: The futures of calls, of `initialized`, of `stop()`, and so on.
        timeout: Maximum time for all futures from this call on, in seconds.

    Raises:
        TypeError: An element is not a `Future`.
        TimeoutError: The timeout expired; raised by the iteration. The calls continue.

    Example:
        >>> for future in as_completed([mesh.step.call_one(n) for n in range(8)]):
        ...     print(future.get())
    """
    return CompletedFutures(futures, timeout)


def wait(
    futures: Iterable[Future[R]], *, first: int | None = None, timeout: float | None = None
) -> WaitResult[R]:
    """Wait until futures are done, and return the done and the pending futures separately.

    Args:
        futures: The futures to wait for.
        first: Return as soon as this number of futures is done. Default: all of them.
        timeout: Maximum time to wait, in seconds. When it expires, fewer futures may be done.

    Raises:
        TypeError: An element is not a `Future`.
        ValueError: `first` is negative or exceeds the number of futures.
        RuntimeError: The thread runs an event loop, which this would block.
    """
    if is_on_event_loop():
        raise RuntimeError(
            "wait blocks the event loop: use 'async for future in as_completed(futures)'"
        )
    given = list(dict.fromkeys(futures))
    count = len(given) if first is None else first
    if not 0 <= count <= len(given):
        raise ValueError(f"first={first} is not between 0 and {len(given)}, the number of futures")
    queue = _queue_of(given)
    until = None if timeout is None else time.monotonic() + checked_timeout(timeout)
    done: list[Future[R]] = []
    while len(done) < count:
        found = queue.next(None if until is None else max(until - time.monotonic(), 0.0))
        if found is None:
            break
        done.append(found)
    ended = set(done)
    return WaitResult(done, [one for one in given if one not in ended])


def _queue_of(futures: Iterable[Any]) -> DoneQueue:
    queue = DoneQueue()
    # A future that is passed twice is waited for once.
    for future in dict.fromkeys(futures):
        if not isinstance(future, Future):
            raise TypeError(
                f"{future!r} is not a future of Mesh: pass what mesh.endpoint.call(...) returns"
            )
        queue.add(future)
    return queue
