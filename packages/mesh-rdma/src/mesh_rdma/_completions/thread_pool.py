"""Threads that wait for other processes: used again, and never in the way of a program's end."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_in_thread"]

_IDLE_MAX = 8
_IDLE_S = 10.0

_lock = threading.Lock()
_idle: list[queue.SimpleQueue[Callable[[], object]]] = []


def run_in_thread(work: Callable[[], object]) -> None:
    """Runs something in a thread, which is there at once; it may wait as long as it has to."""
    with _lock:
        inbox = _idle.pop() if _idle else None
    is_new = inbox is None
    if inbox is None:
        inbox = queue.SimpleQueue()
    inbox.put(work)
    if is_new:
        # A thread keeps its arguments: the work is none of them.
        threading.Thread(target=_run, args=(inbox,), name="mesh-rdma-wait", daemon=True).start()


def _run(inbox: queue.SimpleQueue[Callable[[], object]]) -> None:
    work = inbox.get()
    while True:
        work()
        # What it had is not kept for as long as the thread waits for more.
        del work
        with _lock:
            if len(_idle) >= _IDLE_MAX:
                return
            _idle.append(inbox)
        try:
            work = inbox.get(timeout=_IDLE_S)
        except queue.Empty:
            with _lock:
                if inbox in _idle:
                    _idle.remove(inbox)
                    return
            # Work is being put there at this moment.
            work = inbox.get()


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_forget)
