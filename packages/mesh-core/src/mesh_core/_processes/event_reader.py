"""The controller's thread that waits for reports and output of processes."""

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
# Interval of the checks for unresponsive processes.
_LOOK_S = 0.5


class EventReader:
    """Reads links to supervisors and logs of processes, and sleeps while no data arrives.

    Logs have a separate epoll inside the main one, so that reading can pause for all of them while
    the forwarder is full. Links are always served.

    Args:
        on_log: Called with each line.
        on_look: Called twice per second with the running time of this process since the last call,
            in seconds.
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
        """Start to read a log."""
        with self._lock:
            self._logs[log.fileno()] = log
        self._log_epoll.register(log.fileno(), select.EPOLLIN)
        self._start()

    def add_link(
        self, link: Link, on_message: Callable[[object], None], on_gone: Callable[[], None]
    ) -> None:
        """Start to receive from a link, which is closed when its other end is gone."""
        with self._lock:
            self._links[link.fileno()] = (link, on_message, on_gone)
        self._epoll.register(link.fileno(), select.EPOLLIN)
        self._start()

    def want_write(self, link: Link) -> None:
        """Send the pending part of a link's messages when its socket is writable."""
        with contextlib.suppress(OSError, ValueError):  # The other end is gone.
            self._epoll.modify(link.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def finish_log(self, log: ProcLog) -> None:
        """Read everything that a dead process has written; runs on the thread of the reader.

        Processes that it started may hold the pipe and continue to write. Their lines follow later.
        """
        if self._logs.get(log.fileno()) is log:
            self._forwarder.put(log.finish())

    def drain_log(self, log: ProcLog) -> None:
        """Read the output of a process so far; must be called on the thread of the reader."""
        if self._logs.get(log.fileno()) is log:
            self._forwarder.put(log.drain())

    def flush(self, limit_s: float) -> bool:
        """Wait until everything written so far is forwarded; return whether it was.

        Args:
            limit_s: The maximum time in seconds without a single forwarded line.
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
        """End the threads and close all pipes."""
        self._is_closed = True
        self._wake()
        if self._thread is not None:
            self._thread.join()
        if self._forwarder.close(_FORWARDER_LIMIT_S):
            os.close(self._wakeup)  # Else a thread still uses it.
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        self._log_epoll.close()
        self._epoll.close()

    def is_current_thread(self) -> bool:
        """Return whether the caller runs on the thread of the reader."""
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
                # A late check, because this process was starved or stopped, counts as one interval.
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
                self._wake()  # The forwarder may have capacity again already.
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
