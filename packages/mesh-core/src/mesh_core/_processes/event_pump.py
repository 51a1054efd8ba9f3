"""The controller's thread that waits for news of processes: their deaths and their output."""

import contextlib
import os
import select
import threading
import time
import traceback
from collections.abc import Callable

from mesh_core._logging.capture import LogForwarder, ProcLog
from mesh_core._logging.line import LogLine
from mesh_core._processes.link import Link

_FORWARDER_LIMIT_S = 1.0
# How often processes are looked at that may be unresponsive.
_LOOK_S = 0.5


class Pump:
    """Reads links to wardens and logs of processes, and sleeps while nothing comes.

    Logs have an epoll of their own inside the main one, so that they can be left alone, all at
    once, while the forwarder is full. Links are served all the time.

    Args:
        on_log: Called with each line.
        on_look: Called twice a second with the running time of this process since the last call.
    """

    def __init__(self, on_log: Callable[[LogLine], None], on_look: Callable[[float], None]) -> None:
        self._on_look = on_look
        self._forwarder = LogForwarder(on_log, self._wake)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._epoll = select.epoll()
        self._log_epoll = select.epoll()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._logs: dict[int, ProcLog] = {}
        self._links: dict[int, tuple[Link, Callable[[object], None], Callable[[], None]]] = {}
        self._flushes: list[threading.Event] = []
        self._reads_logs = True
        self._is_closed = False
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._epoll.register(self._log_epoll.fileno(), select.EPOLLIN)

    def add_log(self, log: ProcLog) -> None:
        """Starts to read a log."""
        with self._lock:
            self._logs[log.fileno()] = log
        self._log_epoll.register(log.fileno(), select.EPOLLIN)
        self._start()

    def add_link(
        self, link: Link, on_message: Callable[[object], None], on_gone: Callable[[], None]
    ) -> None:
        """Starts to receive from a link; it is closed when the other end is gone."""
        with self._lock:
            self._links[link.fileno()] = (link, on_message, on_gone)
        self._epoll.register(link.fileno(), select.EPOLLIN)
        self._start()

    def want_write(self, link: Link) -> None:
        """Has the rest of what was sent on a link sent when there is room."""
        with contextlib.suppress(OSError, ValueError):  # Closed, as the other end is gone.
            self._epoll.modify(link.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def finish_log(self, log: ProcLog) -> None:
        """Takes in all that a dead process has written; to be called on the pump's thread.

        Processes it has started may hold the pipe and go on: their lines follow as they come.
        """
        if self._logs.get(log.fileno()) is log:
            self._forwarder.put(log.finish())

    def drain_log(self, log: ProcLog) -> None:
        """Takes in what a process has written so far; to be called on the pump's thread."""
        if self._logs.get(log.fileno()) is log:
            self._forwarder.put(log.drain())

    def flush(self, limit_s: float) -> bool:
        """Waits until all that was written before is handed on; returns whether it was.

        Args:
            limit_s: How long it waits while not a single line is handed on.
        """
        if self.is_current_thread():
            self._drain()
            return False
        if self._thread is not None and self._thread.is_alive():
            is_drained = threading.Event()
            with self._lock:
                self._flushes.append(is_drained)
            self._wake()
            if not is_drained.wait(limit_s):
                return False
        return self._forwarder.flush(limit_s)

    def close(self) -> None:
        """Ends the threads and lets go of all pipes."""
        self._is_closed = True
        self._wake()
        if self._thread is not None:
            self._thread.join()
        if self._forwarder.close(_FORWARDER_LIMIT_S):
            os.close(self._wakeup)  # Else a callback hangs, and its thread may still use it.
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        self._log_epoll.close()
        self._epoll.close()

    def is_current_thread(self) -> bool:
        """Whether the caller runs on the pump's thread."""
        return threading.current_thread() is self._thread

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mesh-host", daemon=True)
                self._thread.start()

    def _wake(self) -> None:
        os.eventfd_write(self._wakeup, 1)

    def _run(self) -> None:
        looked_at = time.monotonic()
        while not self._is_closed:
            ready = dict(self._epoll.poll(max(0.0, looked_at + _LOOK_S - time.monotonic())))
            now = time.monotonic()
            if now >= looked_at + _LOOK_S:
                # One that comes late, as this process was starved or stopped, counts as one.
                self._on_look(_LOOK_S)
                looked_at = now
            for fd in ready.keys() & self._links.keys():
                self._serve_link(fd, ready[fd])
            if self._log_epoll.fileno() in ready:
                self._read_logs()
            if self._wakeup in ready:
                self._wake_up()

    def _serve_link(self, fd: int, events: int) -> None:
        link, on_message, on_gone = self._links[fd]
        if events & select.EPOLLOUT and not link.flush():
            self._epoll.modify(fd, select.EPOLLIN)
        if not events & ~select.EPOLLOUT:
            return
        try:
            for message, _ in link.receive():
                on_message(message)
        except EOFError:
            self._epoll.unregister(fd)
            with self._lock:
                del self._links[fd]
            link.close()
            on_gone()
        except Exception:
            traceback.print_exc()

    def _read_logs(self) -> None:
        for fd, _ in self._log_epoll.poll(0):
            log = self._logs[fd]
            lines = log.read()
            if lines is None:
                self._forwarder.put(log.finish())
                self._forget_log(log)
            else:
                self._forwarder.put(lines)
            if self._forwarder.is_full:
                self._epoll.unregister(self._log_epoll.fileno())
                self._reads_logs = False
                self._wake()  # There may be room again already.
                return

    def _forget_log(self, log: ProcLog) -> None:
        self._log_epoll.unregister(log.fileno())
        with self._lock:
            del self._logs[log.fileno()]
        log.close()

    def _wake_up(self) -> None:
        os.eventfd_read(self._wakeup)
        if not self._reads_logs and not self._forwarder.is_full:
            self._epoll.register(self._log_epoll.fileno(), select.EPOLLIN)
            self._reads_logs = True
        with self._lock:
            flushes, self._flushes = self._flushes, []
        if flushes:
            self._drain()
            for flush in flushes:
                flush.set()

    def _drain(self) -> None:
        for log in tuple(self._logs.values()):
            self._forwarder.put(log.drain())
