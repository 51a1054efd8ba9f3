"""Threads that run plain functions for an event loop, independent of any executor.

The executors of `concurrent.futures` accept no work after the main thread has ended, but actors in
the process of the program run their cleanup after that.
"""

from __future__ import annotations

import queue
import threading
from typing import TypeVar

from mesh_core._calls.event_loop import running_loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

__all__ = ["OwnThread", "run_beside"]

R = TypeVar("R")


class OwnThread:
    """A thread that runs functions in the order in which an event loop submits them."""

    def __init__(self, name: str) -> None:
        # The length of the queue is bounded by the number of tasks that wait for its functions.
        self._work: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._live, name=name, daemon=True).start()

    def _live(self) -> None:
        while (job := self._work.get()) is not None:
            job.run()
            # Release the resources of the job, such as a port, before waiting for the next job.
            del job

    async def run(self, function: Callable[[], R]) -> R:
        """Run a function on the thread and wait for it; propagate its exception."""
        job = _Job(running_loop(), function)
        self._work.put(job)
        return await job.done  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the thread after it has run all submitted functions."""
        self._work.put(None)


async def run_beside(function: Callable[[], R]) -> R:
    """Run a function on a new thread and wait for it; propagate its exception."""
    thread = OwnThread("mesh-beside")
    try:
        return await thread.run(function)
    finally:
        thread.close()


class _Job:
    """A function and the future of its result."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> None:
        self._loop = loop
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None
        self.done: asyncio.Future[Any] = loop.create_future()

    def run(self) -> None:
        if self.done.cancelled():
            return
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error
        del self._function
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            # The loop is closed, so no task waits for the result.
            return

    def _settle(self) -> None:
        if self.done.done():
            return
        if isinstance(self._error, StopIteration):
            # A future does not accept StopIteration as its exception.
            self.done.set_exception(RuntimeError("the function raised StopIteration"))
        elif self._error is not None:
            self.done.set_exception(self._error)
        else:
            self.done.set_result(self._value)
