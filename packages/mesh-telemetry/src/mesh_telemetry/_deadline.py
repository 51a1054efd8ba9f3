"""Work with an end: what takes longer is left to itself."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

__all__ = ["Late", "remaining_s", "within", "within_async"]

T = TypeVar("T")


class Late(Exception):
    """The work had not ended at its deadline."""


def remaining_s(deadline: float) -> float:
    """Says how long it is until a deadline of `time.monotonic()`, in seconds; 0 when it is over."""
    return max(0.0, deadline - time.monotonic())


def within(work: Callable[[], T], deadline: float) -> T:
    """Gives what the work gives, or raises what it raises, if it ends in time.

    A thread of the engine's cannot be stopped from outside; one that is late is abandoned, and
    ends by itself at the next batch.

    Raises:
        Late: It did not end in time.
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.put((context.run(work), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, name="mesh-telemetry-query", daemon=True).start()
    try:
        result, error = results.get(timeout=remaining_s(deadline))
    except queue.Empty:
        raise Late from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


async def within_async(work: Callable[[], T], deadline: float) -> T:
    """Does what `within` does, and holds up no event loop meanwhile.

    Raises:
        Late: It did not end in time.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as raised:
            error = raised
        # The loop is closed when nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    context = contextvars.copy_context()
    threading.Thread(target=run, name="mesh-telemetry-query", daemon=True).start()
    try:
        return await asyncio.wait_for(done, remaining_s(deadline))
    except TimeoutError:
        if done.cancelled():
            raise Late from None
        raise
