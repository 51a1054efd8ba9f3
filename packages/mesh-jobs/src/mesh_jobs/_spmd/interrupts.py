"""Ctrl-C for what a program runs on ranks: passed on there, before the program hears of it."""

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
    """Has Ctrl-C interrupt what runs on ranks as well, until all of it has ended.

    Nothing happens where the program has no say in that: off the main thread, where it ignores the
    signal, or where something other than Python handles it.
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
    # In a thread: whatever this one was just doing is not to be waited for.
    for execution in list(_running):
        threading.Thread(target=execution.signal, args=(number,), daemon=True).start()
    if callable(_before):
        _before(number, frame)
