"""Forwarding of the output of this host's processes to the program that runs the job."""

from __future__ import annotations

import threading

from mesh_core._logging.capture import wait_while_moving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._logging.line import LogLine

__all__ = ["RemoteLog"]

# Maximum number of queued lines, and maximum characters of a batch; writers block beyond that.
_LINES_MAX = 4_096
_BATCH_CHARS_MAX = 1 << 20


class RemoteLog:
    """Sends lines in batches; the next batch is sent when the previous one has been shown.

    A host with little output therefore sends its lines immediately, and a host with much output
    sends many at a time. A program that shows lines slowly blocks their writers and does not run
    out of memory.

    Args:
        show: Sends a batch and returns when it has been shown; its exceptions are ignored.
    """

    def __init__(self, show: Callable[[list[LogLine]], object]) -> None:
        self._show = show
        self._changed = threading.Condition()
        self._waiting: list[LogLine] = []
        self._put_count = 0
        self._shown_count = 0
        self._thread: threading.Thread | None = None

    def put(self, line: LogLine) -> None:
        """Add a line; blocks while the queue is full."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mesh-log", daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: len(self._waiting) < _LINES_MAX)
            self._waiting.append(line)
            self._put_count += 1
            self._changed.notify_all()

    def flush(self, limit_s: float) -> bool:
        """Wait until all lines put so far have been shown; return whether they have been.

        Args:
            limit_s: Maximum time to wait without a line being shown, in seconds.
        """
        with self._changed:
            goal = self._put_count
            return wait_while_moving(
                self._changed,
                lambda: self._shown_count >= goal,
                lambda: self._shown_count,
                limit_s,
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                batch = self._take()
                self._changed.notify_all()
            try:
                self._show(batch)
            except Exception:
                # The program no longer exists, so the lines have no reader.
                continue
            finally:
                with self._changed:
                    self._shown_count += len(batch)
                    self._changed.notify_all()

    def _take(self) -> list[LogLine]:
        chars = 0
        for count, line in enumerate(self._waiting):
            chars += len(line.text)
            if chars > _BATCH_CHARS_MAX and count > 0:
                batch, self._waiting = self._waiting[:count], self._waiting[count:]
                return batch
        batch, self._waiting = self._waiting, []
        return batch
