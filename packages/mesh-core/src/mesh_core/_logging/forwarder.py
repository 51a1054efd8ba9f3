"""What processes of this host print, on its way to the program that runs the job elsewhere."""

from __future__ import annotations

import threading

from mesh_core._logging.capture import wait_while_moving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._logging.line import LogLine

__all__ = ["RemoteLog"]

# Lines that wait, and characters of one batch; beyond that their writers wait.
_LINES_MAX = 4_096
_BATCH_CHARS_MAX = 1 << 20


class RemoteLog:
    """Sends lines in batches, the next one when the last has been shown.

    So a quiet host's lines come at once, those of a busy one many at a time, and a program that is
    slow to show them slows their writers, not fills its memory.

    Args:
        show: Has a batch shown, and returns when it is; what it raises ends nothing.
    """

    def __init__(self, show: Callable[[list[LogLine]], object]) -> None:
        self._show = show
        self._changed = threading.Condition()
        self._waiting: list[LogLine] = []
        self._put_count = 0
        self._shown_count = 0
        self._thread: threading.Thread | None = None

    def put(self, line: LogLine) -> None:
        """Adds a line; waits while too many do."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mesh-log", daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: len(self._waiting) < _LINES_MAX)
            self._waiting.append(line)
            self._put_count += 1
            self._changed.notify_all()

    def flush(self, limit_s: float) -> bool:
        """Waits until all that was put before is shown; returns whether it was.

        Args:
            limit_s: How long it waits while nothing more is shown.
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
                # The program is gone: nobody is left to read it.
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
