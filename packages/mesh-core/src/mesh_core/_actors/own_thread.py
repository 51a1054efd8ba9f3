"""Plain functions run beside an event loop, on threads that no executor of the program owns.

The executors of `concurrent.futures` take no work once the main thread has ended; actors of the
program's own process clean up after that.
"""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["OwnThread", "run_beside"]

R = TypeVar("R")


class OwnThread:
    """One thread that runs functions in the order in which an event loop hands them over."""

    def __init__(self, name: str) -> None:
        # As long as the tasks that wait for its functions are many.
        self._work: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._live, name=name, daemon=True).start()

    def _live(self) -> None:
        while (job := self._work.get()) is not None:
            job.run()
            # What it has held, such as a port, is let go of before the next one comes.
            del job

    async def run(self, function: Callable[[], R]) -> R:
        """Runs a function there and waits for it; raises what it raises."""
        job = _Job(asyncio.get_running_loop(), function)
        self._work.put(job)
        return await job.done  # type: ignore[no-any-return]

    def close(self) -> None:
        """Lets the thread end behind what it was given."""
        self._work.put(None)


async def run_beside(function: Callable[[], R]) -> R:
    """Runs a function on a thread of its own and waits for it; raises what it raises."""
    thread = OwnThread("mesh-beside")
    try:
        return await thread.run(function)
    finally:
        thread.close()


class _Job:
    """One function, and the future of its outcome."""

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
            # The loop is closed: nobody waits any more.
            return

    def _settle(self) -> None:
        if self.done.done():
            return
        if isinstance(self._error, StopIteration):
            # A future takes none.
            self.done.set_exception(RuntimeError("the function raised StopIteration"))
        elif self._error is not None:
            self.done.set_exception(self._error)
        else:
            self.done.set_result(self._value)
