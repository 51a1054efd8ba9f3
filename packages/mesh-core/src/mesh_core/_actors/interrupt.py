"""Ending what a thread runs, from another thread, without ever hitting what it runs next."""

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
    """What is raised inside a plain endpoint whose caller has given the call up."""

    def __init__(self) -> None:
        super().__init__("call was cancelled by its caller")


class Interruptible:
    """A thread that serves messages one by one, of which the running one can be ended.

    An exception that one thread raises in another arrives some time later. So the canceller sets
    `cancelling` before it looks at `running`, and the thread looks at `cancelling` after it has
    reset `running`: either the canceller sees that the message is over, or the thread sees that an
    exception may still be on its way and takes it back.
    """

    def __init__(self) -> None:
        self.running: Message | None = None
        self.cancelling: Message | None = None
        self.ident = 0
        self._lock = threading.Lock()

    def interrupt(self, key: Key) -> bool:
        """Raises `CallerGone` in the thread if it runs the message from there."""
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
        """Says whether the message was; afterwards nothing is on its way to this thread."""
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
    """Raises an exception in a thread when it next runs Python code; None takes that back."""
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), raised)
