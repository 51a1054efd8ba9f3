"""Dependencies between the tasks of an event loop: which task waits for which other task.

asyncio exposes this for a task that awaits another task and for `gather`. A `TaskGroup`, `wait` and
`shield` await an internal future that callbacks of the tasks complete, so this module inspects
those callbacks. A construct that it does not recognize, for example in a newer Python, counts as
not awaited: a deadlock is then missed, but none is reported wrongly.
"""

from __future__ import annotations

from typing import Any

from mesh_core._calls.event_loop import load_asyncio

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio

__all__ = ["is_awaited_by"]

_TASKS_MAX = 256


def is_awaited_by(root: asyncio.Task[Any], task: asyncio.Task[Any]) -> bool:
    """Return whether `root` is `task`, or cannot continue until `task` has ended."""
    left: list[Any] = [root]
    for _ in range(_TASKS_MAX):
        if not left:
            return False
        waiting = left.pop()
        if waiting is task:
            return True
        awaited = getattr(waiting, "_fut_waiter", None)
        if awaited is None:
            continue
        if isinstance(awaited, load_asyncio().Task):
            left.append(awaited)
        elif _is_completed_by(awaited, task):
            return True
        else:
            left.extend(getattr(awaited, "_children", ()))
    return False


def _is_completed_by(awaited: Any, task: Any) -> bool:
    """Return whether a future is completed by a callback of a task, when that task ends."""
    callbacks = getattr(task, "_callbacks", None) or ()
    return any(_completes(callback, awaited) for callback, _ in tuple(callbacks))


def _completes(callback: Any, awaited: Any) -> bool:
    group = getattr(callback, "__self__", None)
    if isinstance(group, load_asyncio().TaskGroup):
        return getattr(group, "_on_completed_fut", None) is awaited
    names = getattr(getattr(callback, "__code__", None), "co_freevars", ())
    try:
        held = {
            name: cell.cell_contents
            for name, cell in zip(names, callback.__closure__ or (), strict=True)
        }
    except (AttributeError, ValueError):
        return False
    if held.get("outer") is awaited:
        return True
    is_last = held.get("return_when") != load_asyncio().FIRST_COMPLETED or held.get("counter") == 1
    return held.get("waiter") is awaited and held.get("timeout_handle") is None and is_last
