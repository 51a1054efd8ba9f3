"""Replacements of functions of the standard library that wait, or that read the clock.

They apply to the threads of a simulation. All other threads of the process get the originals.
"""

from __future__ import annotations

import os
import queue
import random
import select
import selectors
import threading
import time
from contextlib import contextmanager

from mesh_core._simulation.errors import Abandoned
from mesh_core._simulation.locks import SimulatedLock, SimulatedRLock
from mesh_core._simulation.replaced import replaced
from mesh_core._simulation.scheduler import NS, running_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from mesh_core._simulation.scheduler import SimulatedThread

__all__ = ["simulated_standard_library"]

# The time at which every simulation begins: midnight UTC of 1 January 2026, in seconds since 1970.
_EPOCH_S = 1_767_225_600
# Monotonic clocks start here, so that differences to times before are not negative.
_START_S = 1000
# An event loop that is never idle lets other threads run after this many iterations.
_BUSY_MAX = 16

_real: Any = {
    "Lock": threading.Lock,
    "RLock": threading.RLock,
    "sleep": time.sleep,
    "poll": select.poll,
    "start": threading.Thread.start,
    "join": threading.Thread.join,
    "is_alive": threading.Thread.is_alive,
    "getpid": os.getpid,
    "kill": os.kill,
    "_exit": os._exit,
    "urandom": os.urandom,
    "select": selectors.EpollSelector.select,
}


@contextmanager
def simulated_standard_library(seed: int) -> Iterator[None]:
    """Replace functions of the standard library while the block runs."""
    draw = random.Random(seed)
    replacements: list[tuple[Any, str, Any]] = [
        (threading, "Lock", _lock),
        (threading, "_allocate_lock", _lock),
        (threading, "RLock", _reentrant_lock),
        (threading, "_time", _clock_s(_START_S, time.monotonic)),
        (threading.Thread, "start", _start),
        (threading.Thread, "join", _join),
        (threading.Thread, "is_alive", _is_alive),
        (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
        (queue, "time", _clock_s(_START_S, time.monotonic)),
        (time, "monotonic", _clock_s(_START_S, time.monotonic)),
        (time, "perf_counter", _clock_s(_START_S, time.perf_counter)),
        (time, "time", _clock_s(_EPOCH_S, time.time)),
        (time, "monotonic_ns", _clock_ns(_START_S, time.monotonic_ns)),
        (time, "perf_counter_ns", _clock_ns(_START_S, time.perf_counter_ns)),
        (time, "time_ns", _clock_ns(_EPOCH_S, time.time_ns)),
        (time, "sleep", _sleep),
        (select, "poll", _poll),
        (selectors.EpollSelector, "select", _select),
        (os, "getpid", _getpid),
        (os, "kill", _kill),
        (os, "_exit", _exit),
        (os, "urandom", lambda count: _urandom(draw, count)),
    ]
    with replaced(replacements):
        yield


def _clock_ns(start_s: int, real: Callable[[], int]) -> Callable[[], int]:
    def read() -> int:
        thread = running_thread()
        if thread is None:
            return real()
        return start_s * NS + thread.scheduler.native.read_clock_ns()

    return read


def _clock_s(start_s: int, real: Callable[[], float]) -> Callable[[], float]:
    def read() -> float:
        thread = running_thread()
        if thread is None:
            return real()
        return start_s + thread.scheduler.native.read_clock_ns() / NS

    return read


def _sleep(seconds: float) -> None:
    thread = running_thread()
    if thread is None:
        _real["sleep"](seconds)
        return
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    native = thread.scheduler.native
    until_ns = native.now_ns() + int(seconds * NS)
    thread.scheduler.wait(until_ns)
    while native.now_ns() < until_ns:
        thread.scheduler.wait(until_ns)


# Threads.


def _lock() -> Any:
    return _real["Lock"]() if running_thread() is None else SimulatedLock()


def _reentrant_lock() -> Any:
    return _real["RLock"]() if running_thread() is None else SimulatedRLock()


def _start(self: Any) -> None:
    parent = running_thread()
    if parent is None:
        _real["start"](self)
        return
    if self._started.is_set():
        raise RuntimeError("threads can only be started once")
    self._started.set()
    self._mesh_simulated = parent.scheduler.spawn(parent.process, lambda: _run(self), self.name)


def _run(thread: Any) -> None:
    """Perform the steps of the standard library around `Thread.run`."""
    thread._set_ident()
    active: dict[int, Any] = threading._active  # type: ignore[attr-defined]
    active[thread.ident] = thread
    try:
        thread.run()
    except (Abandoned, SystemExit):
        pass
    except BaseException:
        # Code that does not expect its end may fail in any way.
        if not thread._mesh_simulated.scheduler.is_closing:
            thread._invoke_excepthook(thread)
    finally:
        active.pop(thread.ident, None)
        # The interpreter reads this at its exit. The standard library does not know its thread.
        thread._is_stopped = True
        handle = getattr(thread, "_handle", None)
        if handle is not None:
            handle._set_done()


def _join(self: Any, timeout: float | None = None) -> None:
    simulated: SimulatedThread | None = self.__dict__.get("_mesh_simulated")
    if simulated is None:
        _real["join"](self, timeout)
        return
    me = running_thread()
    if me is None or simulated.is_finished:
        return
    native = me.scheduler.native
    until_ns = None if timeout is None else native.now_ns() + int(max(timeout, 0) * NS)
    simulated.joining.append(me)
    while not simulated.is_finished:
        if until_ns is not None and native.now_ns() >= until_ns:
            return
        me.scheduler.wait(until_ns)


def _is_alive(self: Any) -> bool:
    simulated: SimulatedThread | None = self.__dict__.get("_mesh_simulated")
    if simulated is None:
        alive: bool = _real["is_alive"](self)
        return alive
    return not simulated.is_finished


# Descriptors.


def _select(self: Any, timeout: float | None = None) -> list[Any]:
    thread = running_thread()
    real = _real["select"]
    if thread is None:
        return real(self, timeout)  # type: ignore[no-any-return]
    ready: list[Any] = real(self, 0)
    is_over = timeout is not None and timeout <= 0
    busy = self.__dict__.get("_mesh_busy", 0) + 1
    if not ready and not is_over:
        busy = 0
        thread.scheduler.wait_for_descriptor(self.fileno(), timeout)
        ready = real(self, 0)
    elif busy >= _BUSY_MAX:
        busy = 0
        thread.scheduler.wait_s(0)
    self._mesh_busy = busy
    return ready


class _SimulatedPoll:
    """Replaces the objects of `select.poll`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def register(self, descriptor: Any, events: int = select.POLLIN | select.POLLOUT) -> None:
        """Watch a descriptor."""
        self._epoll.register(descriptor, events)

    def unregister(self, descriptor: Any) -> None:
        """Stop to watch a descriptor."""
        self._epoll.unregister(descriptor)

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Wait for events, at most for `timeout` milliseconds."""
        ready = self._epoll.poll(0)
        thread = running_thread()
        is_over = timeout is not None and 0 <= timeout <= 0
        if ready or is_over or thread is None:
            return ready
        limit_s = None if timeout is None or timeout < 0 else timeout / 1000
        thread.scheduler.wait_for_descriptor(self._epoll.fileno(), limit_s)
        return self._epoll.poll(0)


def _poll() -> Any:
    return _real["poll"]() if running_thread() is None else _SimulatedPoll()


# Processes.


def _getpid() -> int:
    thread = running_thread()
    pid: int = _real["getpid"]() if thread is None else _process_of(thread).pid
    return pid


def _kill(pid: int, number: int) -> None:
    thread = running_thread()
    if thread is None:
        _real["kill"](pid, number)
    else:
        _process_of(thread).world.signal(pid, number)


def _exit(status: int) -> None:
    thread = running_thread()
    if thread is None:
        _real["_exit"](status)
    else:
        _process_of(thread).exit(status)


def _process_of(thread: SimulatedThread) -> Any:
    return thread.process


def _urandom(draw: random.Random, count: int) -> bytes:
    real: bytes = _real["urandom"](count) if running_thread() is None else draw.randbytes(count)
    return real
