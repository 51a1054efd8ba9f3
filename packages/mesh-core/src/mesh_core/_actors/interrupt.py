"""Interruption of the endpoint that a thread runs, without affecting the endpoint it runs next."""

from __future__ import annotations

import ctypes
import threading

from mesh_core._errors import CallCancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import Message

    Key = tuple[int, int]

__all__ = ["CallerGone", "Interruptible"]


class CallerGone(CallCancelled):
    """Raised inside a plain endpoint whose caller has cancelled the call."""

    def __init__(self) -> None:
        super().__init__("call was cancelled by its caller")


class Interruptible:
    """A thread that serves messages one at a time and whose running message can be interrupted.

    An exception that one thread raises in another arrives some time later. Therefore the canceller
    sets `cancelling` before it reads `running`, and the thread reads `cancelling` after it has
    reset `running`. Either the canceller sees that the message has ended, or the thread sees that
    an exception may be pending and revokes it.
    """

    def __init__(self) -> None:
        self.running: Message | None = None
        self.cancelling: Message | None = None
        self.ident = 0
        self._lock = threading.Lock()

    def interrupt(self, key: Key) -> bool:
        """Raise `CallerGone` in the thread if it is running the message with this key."""
        with self._lock:
            running = self.running
            if running is None or (running.from_proc, running.from_port) != key:
                return False
            self.cancelling = running
            if self.running is running:
                _raise_in(self.ident, CallerGone)
            else:
                self.cancelling = None
            return True

    def was_interrupted(self, message: Message) -> bool:
        """Return whether the message was interrupted, and revoke any pending exception."""
        while True:
            try:
                with self._lock:
                    was_it = self.cancelling is message
                    _raise_in(self.ident, None)
                    self.cancelling = None
                    return was_it
            except CallerGone:
                continue


def _raise_in(ident: int, kind: type[BaseException] | None) -> None:
    """Raise an exception in a thread when it next runs Python code; None revokes a pending one."""
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), raised)
