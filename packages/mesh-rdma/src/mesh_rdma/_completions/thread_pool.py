"""A pool of daemon threads for blocking work; it does not delay the exit of the program."""

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
    """Run a function in an idle or new thread; it may block for as long as it needs."""
    with _lock:
        inbox = _idle.pop() if _idle else None
    is_new = inbox is None
    if inbox is None:
        inbox = queue.SimpleQueue()
    inbox.put(work)
    if is_new:
        # A thread keeps its arguments alive, so `work` is not among them.
        threading.Thread(target=_run, args=(inbox,), name="mesh-rdma-wait", daemon=True).start()


def _run(inbox: queue.SimpleQueue[Callable[[], object]]) -> None:
    work = inbox.get()
    while True:
        work()
        # An idle thread does not keep its last function alive.
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
            # `run_in_thread` is putting a function into the inbox.
            work = inbox.get()


def _reset_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
