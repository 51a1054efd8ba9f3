"""Futures of coroutines that run on the event loop of this process."""

from __future__ import annotations

import functools
from typing import Any, ParamSpec, TypeVar

from mesh_core._calls.event_loop import load_asyncio, loop_thread
from mesh_core._calls.future import _ERROR, _VALUE, Future
from mesh_core._calls.own_thread import run_beside

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from mesh_core._calls.event_loop import LoopThread

__all__ = ["returns_future", "run_async", "run_in_thread"]

P = ParamSpec("P")
R = TypeVar("R")


class _TaskFuture(Future[R]):
    """The outcome of a coroutine."""

    __slots__ = ("_running",)

    def __init__(self, thread: LoopThread, coroutine: Coroutine[Any, Any, R]) -> None:
        self._start()
        self._running = thread.submit(coroutine)

    def _wait(self, timeout: float | None) -> None:
        try:
            self._running.exception(timeout)
        except Exception:
            # It timed out, or the coroutine was cancelled.
            if not self._running.done():
                raise TimeoutError(f"not completed in {timeout} s") from None
        self._poll()

    def _poll(self) -> None:
        if not self._running.done():
            return
        if self._running.cancelled():
            self._settle(_ERROR, load_asyncio().CancelledError())
            return
        error = self._running.exception()
        if error is None:
            self._settle(_VALUE, self._running.result())
        else:
            self._settle(_ERROR, error)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._running.add_done_callback(lambda _: loop.call_soon_threadsafe(self._poll))

    def _give_up(self) -> bool:
        return self._running.cancel()


def run_async(thread: LoopThread, coroutine: Coroutine[Any, Any, R]) -> Future[R]:
    """Run a coroutine on a loop and return a future of its outcome."""
    return _TaskFuture(thread, coroutine)


def run_in_thread(function: Callable[[], R]) -> Future[R]:
    """Run a function on a new thread and return a future of its result."""
    return run_async(loop_thread(), run_beside(function))


def returns_future(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Future[R]]:
    """Wrap an `async def` into a function that returns a `Future`, for threads and event loops."""

    @functools.wraps(function)
    def start(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return run_async(loop_thread(), function(*args, **kwargs))

    return start
