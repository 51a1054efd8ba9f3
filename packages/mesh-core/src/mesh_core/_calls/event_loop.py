"""Event loops: how replies wake them, and the loop that all async endpoints share.

A loop watches two file descriptors. Behind one are the connections of this process, which the loop
reads itself. Behind the other, the core lists the ports that became ready because another thread
read the connections. The loop then runs the callbacks of those ports. Mesh never accesses a loop
from another thread for this.
"""

from __future__ import annotations

import sys
import threading
from contextvars import Context
from typing import Any
from weakref import WeakKeyDictionary, ref

from mesh_core._calls.loop_watchdog import watch_loop
from mesh_core._core import ReadyQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future as ThreadFuture

    from mesh_core._core import Engine

__all__ = [
    "LoopThread",
    "LoopWaker",
    "is_on_event_loop",
    "load_asyncio",
    "loop_thread",
    "running_loop",
    "runs_here",
    "waker_of",
]

_asyncio: Any = None


class _Local(threading.local):
    """The loop that ran last in this thread.

    asyncio also knows the loop of a thread, but its lookup is a system call in Python 3.11, which
    takes a tenth of the time of a call.
    """

    loop: Callable[[], asyncio.AbstractEventLoop | None] = staticmethod(lambda: None)


_local = _Local()

# A loop that has woken this often while another thread read the connections leaves them to that
# thread for a while.
_MISSED_MAX = 8
_PAUSE_S = 0.05


def load_asyncio() -> Any:
    """Import asyncio on first use and return the module.

    Importing asyncio takes as long as importing Mesh, and most programs run no event loop.
    """
    global _asyncio
    if _asyncio is None:
        import asyncio  # noqa: PLC0415

        _asyncio = asyncio
    return _asyncio


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs in this thread.

    Raises:
        RuntimeError: No event loop is running in this thread.
    """
    loop: asyncio.AbstractEventLoop | None = _local.loop()
    if loop is not None and runs_here(loop):
        return loop
    try:
        loop = load_asyncio().get_running_loop()
    except RuntimeError:
        raise RuntimeError("no event loop is running in this thread: use get()") from None
    _local.loop = ref(loop)
    return loop


def is_on_event_loop() -> bool:
    """Return whether this thread runs an event loop, without importing asyncio."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this thread runs the loop; False also if that is unknown."""
    return getattr(loop, "_thread_id", None) == threading.get_ident()


class LoopWaker:
    """Runs callbacks for ready ports on one event loop.

    While callbacks wait, the loop also watches the connections of this process and reads them
    itself, so that an arrival wakes no other thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        self.engine = engine
        # Weak, because the loop keeps its waker alive.
        self._loop = ref(loop)
        self._queue = ReadyQueue()
        self._reader = engine.loop_reader(self._queue)
        self._is_reading = False
        self._missed_count = 0
        self._once: dict[int, list[Callable[[], object]]] = {}
        self._always: dict[int, Callable[[], object]] = {}
        # The callbacks of all tasks must not run in the context of the task that comes first.
        self._context = Context()
        self._context.run(loop.add_reader, self._queue.fileno(), self._on_ready)

    def watch(self, port: int, callback: Callable[[], object]) -> None:
        """Call `callback` once, when a message arrives on the port or soon if one is queued."""
        callbacks = self._once.get(port)
        if callbacks is None:
            self._once[port] = [callback]
        elif callback not in callbacks:
            callbacks.append(callback)
        self._notify(port)

    def watch_always(self, port: int, callback: Callable[[], object]) -> None:
        """Call `callback` whenever a message arrives on the port."""
        self._always[port] = callback
        self._notify(port)

    def forget(self, port: int) -> None:
        """Remove all callbacks of the port."""
        self._once.pop(port, None)
        self._always.pop(port, None)

    def _notify(self, port: int) -> None:
        if not self._is_reading and self._missed_count < _MISSED_MAX:
            self._start_reading()
        self.engine.notify(port, self._queue)

    def _start_reading(self) -> None:
        self._is_reading = True
        self._reader.set_attached(True)
        self._context.run(self._running().add_reader, self._reader.fileno(), self._read)

    def _stop_reading(self) -> None:
        self._is_reading = False
        self._reader.set_attached(False)
        self._running().remove_reader(self._reader.fileno())

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = self._loop()
        assert loop is not None, "a loop that runs exists"
        return loop

    def _read(self) -> None:
        """Read the connections; the loop calls this when one of them has data."""
        ports = self._reader.read()
        if ports is None:
            # Another thread reads them, and reports the ports of this loop.
            self._missed_count += 1
            if self._missed_count >= _MISSED_MAX:
                self._stop_reading()
                self._running().call_later(_PAUSE_S, self._resume_reading)
            return
        self._missed_count = 0
        if not self._once and not self._always:
            self._stop_reading()
        self._run(ports)

    def _resume_reading(self) -> None:
        self._missed_count = 0
        if self._once or self._always:
            self._start_reading()

    def _on_ready(self) -> None:
        self._run(self._queue.take())

    def _run(self, ports: list[int]) -> None:
        for port in ports:
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
