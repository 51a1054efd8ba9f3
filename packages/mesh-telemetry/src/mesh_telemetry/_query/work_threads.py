"""Reusable threads whose current work can be stopped."""

from __future__ import annotations

import contextvars
import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

__all__ = ["Work"]

T = TypeVar("T")
# Threads beyond this number are created on demand and exit after their work.
_IDLE_MAX = 4
_STOP_S = 1.0


class _Stopped(BaseException):
    """Raised in the thread of stopped work."""


class Work(Generic[T]):
    """A unit of work, which starts in another thread when the instance is created.

    Args:
        do: The work.
        settle: Called in that thread with the result or the exception, unless the work was stopped.
    """

    def __init__(
        self, do: Callable[[], T], settle: Callable[[T | None, BaseException | None], object]
    ) -> None:
        self._do = do
        self._settle = settle
        self._context = contextvars.copy_context()
        # The item is removed by the thread of the work when it ends, or by `stop` before that; the
        # later of the two finds no item. A lock is not sufficient, because an exception can be
        # raised anywhere in the thread and could leave it locked.
        self._end: list[None] = [None]
        try:
            self._thread = _idle.pop()
        except IndexError:
            self._thread = _WorkThread()
            self._thread.start()
        self._thread.wanted.put(self)

    def stop(self) -> None:
        """Stop the work if it has not ended.

        The engine checks about once a second whether its thread must stop, and then drops its
        stream.
        """
        if self._take_end():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(_Stopped)
            )

    def run(self, rest: Callable[[], object]) -> bool:
        """Run the work.

        Args:
            rest: Called before `settle`, which may start more work immediately.

        Returns:
            Whether the work ended without being stopped.
        """
        result, error = None, None
        try:
            result = self._context.run(self._do)
        except BaseException as raised:
            error = raised
        if not self._take_end():
            return False
        rest()
        self._settle(result, error)
        return True

    def _take_end(self) -> bool:
        try:
            self._end.pop()
        except IndexError:
            return False
        return True


class _WorkThread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="mesh-telemetry-query", daemon=True)
        self.wanted: SimpleQueue[Work[Any]] = SimpleQueue()
        self._stays = True

    def run(self) -> None:
        with suppress(_Stopped):
            while self._stays:
                if not self.wanted.get().run(self._rest):
                    # The exception that stops this thread may not have been raised yet, and must
                    # not hit a new thread with the same identifier.
                    time.sleep(_STOP_S)
                    return

    def _rest(self) -> None:
        self._stays = len(_idle) < _IDLE_MAX
        if self._stays:
            _idle.append(self)


_idle: list[_WorkThread] = []
# A forked process has none of these threads.
os.register_at_fork(after_in_child=_idle.clear)
