"""Forwarding of Ctrl-C to commands on ranks, before the program itself handles it."""

from __future__ import annotations

import signal
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from mesh_jobs._exec.execution import Execution

__all__ = ["pass_interrupts_to"]

_running: weakref.WeakSet[Execution] = weakref.WeakSet()
_before: signal._HANDLER = None


def pass_interrupts_to(execution: Execution) -> None:
    """Forward Ctrl-C to the command on all ranks, until all of them have exited.

    Has no effect outside the main thread, or if the program ignores the signal or handles it
    outside of Python.
    """
    global _before
    if threading.current_thread() is not threading.main_thread():
        return
    _running.add(execution)
    now = signal.getsignal(signal.SIGINT)
    if now is not _interrupt and callable(now):
        _before = now
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Threads are needed because the handler must not wait for the code that it interrupted.
    for execution in list(_running):
        threading.Thread(target=execution.signal, args=(number,), daemon=True).start()
    if callable(_before):
        _before(number, frame)
