"""Reusable threads whose current work can be stopped."""

from __future__ import annotations

import contextvars
import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

__all__ = ["Work", "WorkThread"]

T = TypeVar("T")
# Threads beyond this number are created on demand and exit after their work.
_IDLE_MAX = 4
# The engine checks about once a second whether its thread must stop.
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
            self._thread = WorkThread()
            self._thread.start()
        self._thread.wanted.put(self)

    def stop(self) -> None:
        """Stop the work if it has not ended; return without waiting for its end."""
        if self._take_end():
            name = f"{self._thread.name}-stop"
            threading.Thread(target=self._thread.stop, name=name, daemon=True).start()

    def run(self, rest: Callable[[], object]) -> bool:
        """Run the work, unless it was stopped before its thread could begin.

        Args:
            rest: Called before `settle`, which may start more work immediately.

        Returns:
            Whether the work ended without being stopped.
        """
        if not self._end:
            return False
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


class WorkThread(threading.Thread):
    """A thread that runs one unit of work after another until one of them is stopped.

    `_Stopped` is raised in it only while it runs its loop: an exception that arrived while the
    thread starts or exits would escape from `run`, and one that is raised after its exit would hit
    a new thread with the same identifier. Therefore the thread holds `_turn` outside of its loop.
    """

    def __init__(self) -> None:
        super().__init__(name="mesh-telemetry-query", daemon=True)
        self.wanted: SimpleQueue[Work[Any]] = SimpleQueue()
        self._stays = True
        self._turn = threading.Lock()
        self._turn.acquire()
        self._works = True

    def run(self) -> None:
        with suppress(_Stopped):
            self._work()

    def _work(self) -> None:
        try:
            self._turn.release()
            while self._stays and self.wanted.get().run(self._rest):
                pass
        finally:
            # Python checks for exceptions of other threads after a call, not before it. The one
            # that may be pending is therefore raised after `acquire`, when no other can follow.
            try:
                self._turn.acquire()
            finally:
                self._raise(None)
                self._works = False
                self._turn.release()

    def stop(self) -> None:
        """Stop the work of this thread; return when it has ended.

        The exception is lost if a weak reference or an object is finalized in the thread when it
        arrives, so it is raised again until the work ends.
        """
        while True:
            with self._turn:
                if not self._works:
                    return
                self._raise(_Stopped)
            self.join(_STOP_S)

    def _raise(self, kind: type[BaseException] | None) -> None:
        """Raise an exception when the thread next runs Python code; None revokes a pending one."""
        raised = None if kind is None else ctypes.py_object(kind)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), raised)

    def _rest(self) -> None:
        self._stays = len(_idle) < _IDLE_MAX
        if self._stays:
            _idle.append(self)


_idle: list[WorkThread] = []
# A forked process has none of these threads.
os.register_at_fork(after_in_child=_idle.clear)
