"""Warnings about code that blocks the event loop of async endpoints.

A thread samples the loop. It queries the loop only if the loop is not idle at that time, so that an
idle process is not woken and calls cost nothing.
"""

from __future__ import annotations

import os
import sys
import threading

from mesh_core._logging.python_logging import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from mesh_core._calls.event_loop import LoopThread

__all__ = ["watch_loop"]

_SAMPLE_S = 0.5
_BLOCKED_S = 1.0
_REPORTS_MAX = 100
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def watch_loop(loop: LoopThread) -> None:
    """Report each line of the program that blocks the loop, once, from a separate thread."""
    threading.Thread(target=_watch, args=(loop,), name="mesh-loop-watch", daemon=True).start()


def _watch(loop: LoopThread) -> None:
    reported: set[tuple[str, int]] = set()
    pause = threading.Event()
    while loop.thread.is_alive() and len(reported) < _REPORTS_MAX:
        pause.wait(_SAMPLE_S)
        frame = _frame_of(loop)
        if frame is None or _is_idle(frame):
            continue
        del frame
        if _has_progress(loop):
            continue
        line = _line_of(_frame_of(loop))
        if line is not None and line[:2] not in reported:
            reported.add(line[:2])
            warn(_report(*line))


def _frame_of(loop: LoopThread) -> FrameType | None:
    return sys._current_frames().get(loop.thread.ident or 0)


def _is_idle(frame: FrameType) -> bool:
    """Return whether the loop waits for events."""
    return frame.f_code.co_name == "select" and frame.f_code.co_filename.startswith(_LIBRARY)


def _has_progress(loop: LoopThread) -> bool:
    """Return whether the loop runs another callback in time."""
    answered = threading.Event()
    try:
        loop.call(answered.set)
    except RuntimeError:
        return True  # the loop is closed
    return answered.wait(_BLOCKED_S)


def _line_of(frame: FrameType | None) -> tuple[str, int, str] | None:
    """Return file, line and function of the innermost frame of the program."""
    if frame is None or _is_idle(frame):
        return None
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_LIBRARY, _OURS, "<frozen")):
            return code.co_filename, frame.f_lineno, code.co_qualname
        frame = frame.f_back
    return None


def _report(file: str, line: int, function: str) -> str:
    return (
        f"{function} has blocked the event loop of its process for {_BLOCKED_S:g} s, at "
        f"{file}:{line}: no other async endpoint of the process can run; await the operation, call "
        "it with asyncio.to_thread, or declare the endpoint with def instead of async def"
    )
