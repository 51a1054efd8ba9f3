"""Event loops: how one is woken by answers, and the one that async endpoints share.

A loop watches one descriptor. The core lists the ports that became ready behind it; the loop then
calls whoever watches them. No thread of ours touches a loop from outside.
"""

from __future__ import annotations

import sys
import threading
from weakref import WeakKeyDictionary

from mesh_core._core import ReadyQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future as ThreadFuture
    from typing import Any

    from mesh_core._core import Engine

__all__ = ["LoopThread", "LoopWaker", "is_on_event_loop", "loop_thread", "waker_of"]


def is_on_event_loop() -> bool:
    """Says whether this thread runs an event loop, without importing asyncio for the question."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


class LoopWaker:
    """Calls watchers of ports from within one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        self.engine = engine
        self._queue = ReadyQueue()
        self._once: dict[int, list[Callable[[], object]]] = {}
        self._always: dict[int, Callable[[], object]] = {}
        loop.add_reader(self._queue.fileno(), self._on_ready)

    def watch(self, port: int, callback: Callable[[], object]) -> None:
        """Calls back once when something has come in on the port, soon if it is there already."""
        callbacks = self._once.get(port)
        if callbacks is None:
            self._once[port] = [callback]
        elif callback not in callbacks:
            callbacks.append(callback)
        self.engine.notify(port, self._queue)

    def watch_always(self, port: int, callback: Callable[[], object]) -> None:
        """Calls back whenever something has come in on the port."""
        self._always[port] = callback
        self.engine.notify(port, self._queue)

    def forget(self, port: int) -> None:
        """Calls nobody back for the port any more."""
        self._once.pop(port, None)
        self._always.pop(port, None)

    def _on_ready(self) -> None:
        for port in self._queue.take():
            for callback in self._once.pop(port, ()):
                callback()
            always = self._always.get(port)
            if always is not None:
                always()


_wakers: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaker] = WeakKeyDictionary()


def waker_of(loop: asyncio.AbstractEventLoop, engine: Engine) -> LoopWaker:
    """Gives the waker of a loop for the ports of an engine; to be called from within the loop."""
    waker = _wakers.get(loop)
    if waker is None or waker.engine is not engine:
        # The loop keeps an older one for what is left of an older job.
        waker = _wakers[loop] = LoopWaker(loop, engine)
    return waker


class LoopThread:
    """The event loop that all async endpoints of this process run on."""

    def __init__(self) -> None:
        import asyncio

        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="mesh-async", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        import asyncio

        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> ThreadFuture[Any]:
        """Runs a coroutine there, from any thread."""
        import asyncio

        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        """Calls a function there, from any thread."""
        self.loop.call_soon_threadsafe(callback, *args)


_lock = threading.Lock()
_thread: LoopThread | None = None


def loop_thread() -> LoopThread:
    """Gives the loop of this process, starting it on first use."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = LoopThread()
        return _thread
