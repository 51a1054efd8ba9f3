"""Calls with futures as arguments, which are sent when the values of the futures are known."""

from __future__ import annotations

from typing import Any

from mesh_core._calls.coroutine_future import run_async
from mesh_core._calls.event_loop import loop_thread
from mesh_core._calls.future import Future
from mesh_core._calls.own_thread import run_beside
from mesh_core._errors import MailboxFull

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call_when_done", "has_future"]


def has_future(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an argument is a future; containers are not searched."""
    return any(isinstance(one, Future) for one in (*args, *kwargs.values()))


def call_when_done(
    verb: Callable[..., Future[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Future[Any]:
    """Make a call as soon as all futures among its arguments are done, with their values.

    The message is sent immediately if they are done now, and otherwise on the event loop of this
    process, after messages that were sent in between. If a future fails, the call is not made, and
    its future raises the exception.
    """
    futures = [one for one in (*args, *kwargs.values()) if isinstance(one, Future)]
    if all(one.done() for one in futures):
        return _with_values(verb, args, kwargs)
    return run_async(loop_thread(), _call_when_done(futures, verb, args, kwargs))


async def _call_when_done(
    futures: list[Future[Any]],
    verb: Callable[..., Future[Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    for one in futures:
        await one
    try:
        future = _with_values(verb, args, kwargs)
    except MailboxFull:
        # A thread may block until the mailbox has capacity.
        future = await run_beside(lambda: _with_values(verb, args, kwargs))
    return await future


def _with_values(
    verb: Callable[..., Future[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Future[Any]:
    """Make a call with the values of its futures, which must all be done."""
    values = [one.get() if isinstance(one, Future) else one for one in args]
    named = {key: one.get() if isinstance(one, Future) else one for key, one in kwargs.items()}
    return verb(*values, **named)
