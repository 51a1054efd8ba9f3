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
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        threading.Thread(target=self._live, name=name, daemon=True).start()

    def _live(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            # What it was called with must not live as long as the thread has nothing else to do.
            del work

    async def run(self, function: Callable[[], R]) -> R:
        """Runs a function there and waits for it; raises what it raises."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[R] = loop.create_future()
        self._work.put(lambda: _settle(loop, done, function))
        return await done

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


def _settle(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], function: Callable[[], Any]
) -> None:
    try:
        outcome = function()
    except BaseException as error:
        # A future takes no StopIteration, nor must an exit end this thread.
        problem = RuntimeError("the function raised StopIteration") if isinstance(
            error, StopIteration
        ) else error
        _call(loop, lambda: done.done() or done.set_exception(problem))
        return
    _call(loop, lambda: done.done() or done.set_result(outcome))


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        # The loop is closed: nobody waits any more.
        return
