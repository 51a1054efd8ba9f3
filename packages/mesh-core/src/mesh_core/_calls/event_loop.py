"""Event loops: how replies wake them, and the loop that all async endpoints share.

A loop watches one file descriptor. The core lists the ports that became ready behind it, and the
loop then runs the callbacks of those ports. Mesh never accesses a loop from another thread for
this.
"""

from __future__ import annotations

import sys
import threading
from weakref import WeakKeyDictionary

from mesh_core._calls.loop_watchdog import watch_loop
from mesh_core._core import ReadyQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future as ThreadFuture
    from typing import Any

    from mesh_core._core import Engine

__all__ = [
    "LoopThread",
    "LoopWaker",
    "is_on_event_loop",
    "load_asyncio",
    "loop_thread",
    "running_loop",
    "waker_of",
]


def load_asyncio() -> Any:
    """Import asyncio on first use and return the module.

    Its import takes as long as that of Mesh, and most programs never run an event loop.
    """
    import asyncio  # noqa: PLC0415

    return asyncio


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs in this thread.

    Raises:
        RuntimeError: No event loop is running in this thread.
    """
    try:
        loop: asyncio.AbstractEventLoop = load_asyncio().get_running_loop()
    except RuntimeError:
        raise RuntimeError("no event loop is running in this thread: use get()") from None
    return loop


def is_on_event_loop() -> bool:
    """Return whether this thread runs an event loop, without importing asyncio."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


class LoopWaker:
    """Runs callbacks for ready ports on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        self.engine = engine
        self._queue = ReadyQueue()
        self._once: dict[int, list[Callable[[], object]]] = {}
        self._always: dict[int, Callable[[], object]] = {}
        loop.add_reader(self._queue.fileno(), self._on_ready)

    def watch(self, port: int, callback: Callable[[], object]) -> None:
        """Call `callback` once, when a message arrives on the port or soon if one is queued."""
        callbacks = self._once.get(port)
        if callbacks is None:
            self._once[port] = [callback]
        elif callback not in callbacks:
            callbacks.append(callback)
        self.engine.notify(port, self._queue)

    def watch_always(self, port: int, callback: Callable[[], object]) -> None:
        """Call `callback` whenever a message arrives on the port."""
        self._always[port] = callback
        self.engine.notify(port, self._queue)

    def forget(self, port: int) -> None:
        """Remove all callbacks of the port."""
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
    """Return the waker of a loop for the ports of an engine; call it on the loop."""
    waker = _wakers.get(loop)
    if waker is None or waker.engine is not engine:
        # The loop keeps the previous waker for the remaining futures of a previous job.
        waker = _wakers[loop] = LoopWaker(loop, engine)
    return waker


class LoopThread:
    """The event loop on which all async endpoints of this process run."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = load_asyncio().new_event_loop()
        self.thread = threading.Thread(target=self._run, name="mesh-async", daemon=True)
        self.thread.start()
        watch_loop(self)

    def _run(self) -> None:
        load_asyncio().set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> ThreadFuture[Any]:
        """Run a coroutine on the loop, from any thread."""
        running: ThreadFuture[Any] = load_asyncio().run_coroutine_threadsafe(coroutine, self.loop)
        return running

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop, from any thread."""
        self.loop.call_soon_threadsafe(callback, *args)


_lock = threading.Lock()
_thread: LoopThread | None = None


def loop_thread() -> LoopThread:
    """Return the event loop of this process; start it on first use."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = LoopThread()
        return _thread
