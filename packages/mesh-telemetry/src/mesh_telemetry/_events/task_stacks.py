"""The chains of awaits of suspended asyncio tasks in this process."""

from __future__ import annotations

import asyncio
import gc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType
    from typing import Any

__all__ = ["running_loops", "task_frames", "task_stacks"]

_TRIES_MAX = 10
_TASKS_MAX = 4096
# Awaitables that delegate to another one without exposing it; the garbage collector finds it.
_DELEGATING_TYPES = frozenset(
    {"anext_awaitable", "async_generator_asend", "async_generator_athrow", "coroutine_wrapper"}
)
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")


def running_loops(tops: Iterable[tuple[int, FrameType]]) -> dict[int, asyncio.AbstractEventLoop]:
    """Find the event loops that threads run, by the innermost frame of each thread."""
    found: dict[int, asyncio.AbstractEventLoop] = {}
    for ident, top in tops:
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code.co_name == "run_forever":
                loop = frame.f_locals.get("self")
                if isinstance(loop, asyncio.AbstractEventLoop):
                    found[ident] = loop
                    break
            frame = frame.f_back
    return found


def task_stacks(loop: asyncio.AbstractEventLoop) -> list[tuple[str, int, list[FrameType]]]:
    """Return the suspended tasks of a loop: name, id, and frames, innermost first.

    The running task is omitted, because it is part of the stack of its thread.
    """
    tasks: set[asyncio.Task[Any]] = set()
    current = None
    for _ in range(_TRIES_MAX):
        try:
            tasks, current = asyncio.all_tasks(loop), asyncio.current_task(loop)
            break
        except RuntimeError:
            # The tasks changed during the iteration.
            continue
    found = []
    for task in list(tasks)[:_TASKS_MAX]:
        frames = task_frames(task.get_coro()) if task is not current else []
        if frames:
            found.append((task.get_name(), id(task), frames))
    return sorted(found, key=lambda one: one[:2])


def task_frames(outermost: Any) -> list[FrameType]:
    """Return the frames of a coroutine and of everything that it awaits, innermost first."""
    frames = []
    for awaited in _await_chain(outermost):
        frame = next((found for name in _FRAMES if (found := getattr(awaited, name, None))), None)
        if frame is not None:
            frames.append(frame)
    return frames[::-1]


def _await_chain(outermost: Any) -> Iterator[Any]:
    seen = set()
    awaited = outermost
    while awaited is not None and id(awaited) not in seen:
        seen.add(id(awaited))
        yield awaited
        if type(awaited).__name__ in _DELEGATING_TYPES:
            awaited = next((one for one in gc.get_referents(awaited) if _is_awaiting(one)), None)
        else:
            names = (name for name in _AWAITED if hasattr(awaited, name))
            awaited = next((getattr(awaited, name) for name in names), None)


def _is_awaiting(thing: Any) -> bool:
    return type(thing).__name__ in _DELEGATING_TYPES or any(
        hasattr(thing, name) for name in _AWAITED
    )
