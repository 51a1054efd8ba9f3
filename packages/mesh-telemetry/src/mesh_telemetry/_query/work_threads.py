"""Threads that stay for the next piece of work, and can be stopped in the midst of one."""

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
# Where more are needed they are made, and end with their work.
_IDLE_MAX = 4
_STOP_S = 1.0


class _Stopped(BaseException):
    """Raised in the thread of work that is stopped."""


class Work(Generic[T]):
    """A piece of work, which is begun in another thread when this is made.

    Args:
        do: The work.
        settle: Is called there with what it gave, or with what it raised; not any more when it was
            stopped.
    """

    def __init__(
        self, do: Callable[[], T], settle: Callable[[T | None, BaseException | None], object]
    ) -> None:
        self._do = do
        self._settle = settle
        self._context = contextvars.copy_context()
        # Its thread takes it out at the end, or who stops it before: the other one finds nothing.
        # No lock, as what is raised anywhere in a thread could leave that behind.
        self._end: list[None] = [None]
        try:
            self._thread = _idle.pop()
        except IndexError:
            self._thread = _WorkThread()
            self._thread.start()
        self._thread.wanted.put(self)

    def stop(self) -> None:
        """Stops it, if it has not ended.

        The engine looks about once a second whether its thread is to end, and drops its stream
        then.
        """
        if self._take_end():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(_Stopped)
            )

    def run(self, rest: Callable[[], object]) -> bool:
        """Does it; says whether it has come to its end.

        Args:
            rest: Is called before anybody hears of the end: who does may have more work at once.
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
                    # What stops it may still be on its way, and must not find another thread that
                    # was given the same number.
                    time.sleep(_STOP_S)
                    return

    def _rest(self) -> None:
        self._stays = len(_idle) < _IDLE_MAX
        if self._stays:
            _idle.append(self)


_idle: list[_WorkThread] = []
# A fork has none of these threads.
os.register_at_fork(after_in_child=_idle.clear)
