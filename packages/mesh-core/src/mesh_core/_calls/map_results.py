"""Results of `Endpoint.map`: many items on the idle ranks of a mesh, with bounded memory."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, NamedTuple, TypeVar

from mesh_core._calls.done_queue import DoneQueue
from mesh_core._calls.event_loop import is_on_event_loop
from mesh_core._calls.future import Future
from mesh_core._calls.rank_slots import RankSlots
from mesh_core._errors import HostDied, MailboxFull, ProcDied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Self

    from mesh_core._calls.endpoint import Endpoint
    from mesh_core._calls.progress_bar import ProgressBar

__all__ = ["MapOptions", "MapResults"]

R = TypeVar("R")

# With `ordered`, the number of items per slot that may be done before the first one is.
_AHEAD_MAX = 4
_REPR_LEN_MAX = 80


class MapOptions(NamedTuple):
    """The options of `Endpoint.map`."""

    ordered: bool
    max_in_flight: int
    retries: int
    progress: bool


class _Item:
    __slots__ = ("args", "index", "rank", "retries")

    def __init__(self, index: int, args: tuple[Any, ...], retries: int) -> None:
        self.index = index
        self.args = args
        self.retries = retries
        self.rank = -1


class MapResults(Generic[R]):
    """The results of `Endpoint.map`, for `for` and `async for`.

    Items are sent while the results are consumed: at most `max_in_flight` per rank are in progress.
    `close()`, or leaving a `with` block, cancels the calls that are in progress.
    """

    def __init__(
        self,
        endpoint: Endpoint[..., R],
        items: Iterator[tuple[Any, ...]],
        count: int | None,
        options: MapOptions,
    ) -> None:
        self._endpoint = endpoint
        self._options = options
        self._items = items
        self._has_more = True
        self._count = 0
        self._again: deque[_Item] = deque()
        self._slots = RankSlots(endpoint._mesh, options.max_in_flight)
        self._ahead_max = len(endpoint._mesh) * options.max_in_flight * _AHEAD_MAX
        self._queue = DoneQueue()
        self._calls: dict[Future[R], _Item] = {}
        # By the index of the item, in the order of completion; with `ordered`, they wait for their
        # turn.
        self._done: dict[int, tuple[_Item, Future[R]]] = {}
        self._yielded = 0
        self._last_error: BaseException | None = None
        self._bar: ProgressBar | None = None
        if options.progress:
            from mesh_core._calls.progress_bar import ProgressBar  # noqa: PLC0415

            self._bar = ProgressBar(endpoint.name, count)
        self._fill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        if is_on_event_loop():
            raise RuntimeError(
                "waiting for a result would block the event loop: use 'async for' with map"
            )
        while (found := self._next_done()) is None:
            if not self._is_busy():
                self.close()
                raise StopIteration
            self._note(self._queue.next(self._slots.recover()))
        return self._value(*found)

    def __aiter__(self) -> AsyncIterator[R]:
        return self

    async def __anext__(self) -> R:
        while (found := self._next_done()) is None:
            if not self._is_busy():
                self.close()
                raise StopAsyncIteration
            self._note(await self._queue.next_async(self._slots.recover()))
        return self._value(*found)

    def close(self) -> None:
        """Cancel the calls in progress; no further item is sent."""
        self._has_more = False
        self._again.clear()
        self._done.clear()
        calls, self._calls = self._calls, {}
        for future in calls:
            future.cancel()
        if self._bar is not None:
            self._bar.close()

    def _is_busy(self) -> bool:
        return bool(self._calls or self._again)

    def _next_done(self) -> tuple[_Item, Future[R]] | None:
        """Send items to idle ranks, and return a result that may be yielded."""
        self._fill()
        if self._options.ordered:
            return self._done.pop(self._yielded, None)
        return self._done.pop(next(iter(self._done))) if self._done else None

    def _fill(self) -> None:
        while self._again or (self._has_more and self._is_ahead_allowed()):
            rank = self._slots.take()
            if rank is None:
                return
            item = self._next_item()
            if item is None or not self._send(item, rank):
                self._slots.release(rank)
                return

    def _is_ahead_allowed(self) -> bool:
        return not self._options.ordered or self._count - self._yielded < self._ahead_max

    def _next_item(self) -> _Item | None:
        if self._again:
            return self._again.popleft()
        try:
            args = next(self._items)
        except StopIteration:
            self._has_more = False
            return None
        item = _Item(self._count, args, self._options.retries)
        self._count += 1
        return item

    def _send(self, item: _Item, rank: int) -> bool:
        """Send an item; return False if the mailbox of the rank is full of other messages."""
        item.rank = rank
        try:
            future = self._endpoint._call_rank(rank, item.args, {})
        except MailboxFull:
            if not self._calls:
                raise
            self._again.append(item)
            return False
        self._calls[future] = item
        self._queue.add(future)
        return True

    def _note(self, future: Future[Any] | None) -> None:
        """Record the end of a call."""
        item = self._calls.pop(future, None) if future is not None else None
        if item is None or future is None:
            if self._slots.is_dead and not self._calls:
                self._give_up()
            return
        self._slots.release(item.rank)
        error = future.exception()
        if isinstance(error, (ProcDied, HostDied)):
            self._slots.lose(item.rank)
            if item.retries and self._endpoint._is_idempotent:
                item.retries -= 1
                self._last_error = error
                self._again.append(item)
                return
        self._done[item.index] = item, future

    def _give_up(self) -> None:
        """Fail the items that were to be repeated, because no rank is left."""
        error = self._last_error
        self.close()
        assert error is not None, "a rank is dead only after an error"
        raise error

    def _value(self, item: _Item, future: Future[R]) -> R:
        self._yielded += 1
        if self._bar is not None:
            self._bar.advance()
        error = future.exception()
        if error is None:
            return future.get()
        shown = ", ".join(map(repr, item.args))
        if len(shown) > _REPR_LEN_MAX:
            shown = f"{shown[:_REPR_LEN_MAX]}..."
        error.add_note(f"in item {item.index} of map: {self._endpoint.name}({shown})")
        if self._endpoint._options.return_exceptions:
            return error  # type: ignore[return-value]
        self.close()
        return future.get()
