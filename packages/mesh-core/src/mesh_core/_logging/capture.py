"""Capture of process output from pipes: to log files, error reports and callbacks."""

import fcntl
import os
import re
import struct
import sys
import termios
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from mesh_core._logging.line import LogLine, Stream
from mesh_core._system.stdio import PID_TAG, STDERR_TAG, STDOUT_TAG

LINE_LEN_MAX = 64 * 1024

_CUT_MARK = f" [cut: the line is longer than {LINE_LEN_MAX // 1024} KiB]"
# Interval at which an update of a progress bar, which rewrites its line, is passed on.
_PROGRESS_INTERVAL_S = 1.0
_READ_LEN = 1 << 18
_TOKEN = re.compile(rb"([\n\r\xfe\xff])")
_SPECIAL = re.compile(rb"[\r\xfe\xff]")


class LineSplitter:
    """Splits the content of a shared pipe into lines of stdout and stderr.

    After a carriage return, the next text overwrites the line, as on a terminal. The overwritten
    text counts as a line once per second, so that a progress bar visibly advances.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_stderr = False
        self._partial = (bytearray(), bytearray())
        self._is_cut = [False, False]
        self._is_returned = [False, False]
        self._progress_at = [0.0, 0.0]
        self._lines: list[tuple[Stream, str]] = []

    def feed(self, content: bytes) -> list[tuple[Stream, str]]:
        """Return the lines that `content` completes."""
        first, *rest = content.split(b"\n")
        self._take(first)
        for piece in rest:
            self._end_line()
            self._take(piece)
        lines, self._lines = self._lines, []
        return lines

    def finish(self) -> list[tuple[Stream, str]]:
        """Return the remaining text as lines, as if it had ended with line feeds."""
        for is_stderr in (False, True):
            if self._partial[is_stderr]:
                self._is_stderr = is_stderr
                self._end_line()
        lines, self._lines = self._lines, []
        return lines

    def _take(self, piece: bytes) -> None:
        """Add a piece without line feeds to the current line of its stream."""
        if _SPECIAL.search(piece) is None:
            self._add(piece)
            return
        for token in _TOKEN.split(piece):
            if token == STDERR_TAG:
                self._is_stderr = True
            elif token == STDOUT_TAG:
                self._is_stderr = False
            elif token == b"\r":
                self._is_returned[self._is_stderr] = True
            else:
                self._add(token)

    def _add(self, piece: bytes) -> None:
        if not piece:
            return
        which = self._is_stderr
        if self._is_returned[which]:
            self._is_returned[which] = False
            self._overwrite()
        partial = self._partial[which]
        free_len = LINE_LEN_MAX - len(partial)
        partial += piece[:free_len]
        self._is_cut[which] |= len(piece) > free_len

    def _overwrite(self) -> None:
        which = self._is_stderr
        now = self._clock()
        if self._partial[which] and now - self._progress_at[which] >= _PROGRESS_INTERVAL_S:
            self._progress_at[which] = now
            self._emit()
        self._partial[which].clear()
        self._is_cut[which] = False

    def _end_line(self) -> None:
        which = self._is_stderr
        self._emit()
        self._partial[which].clear()
        self._is_cut[which] = self._is_returned[which] = False
        self._is_stderr = False

    def _emit(self) -> None:
        which = self._is_stderr
        text = self._partial[which].decode("utf-8", "replace")
        if self._is_cut[which]:
            text += _CUT_MARK
        self._lines.append(("stderr" if which else "stdout", text))


class ProcLog:
    """The read end of the output pipe of one process."""

    def __init__(
        self, slot: int, incarnation: int, name: str, fd: int, tail_lines: int, path: Path | None
    ) -> None:
        self.slot = slot
        self.incarnation = incarnation
        self.name = name
        self._fd = fd
        self._path = path
        self._file: BinaryIO | None = None
        self._splitter = LineSplitter()
        self._tail: deque[str] = deque(maxlen=tail_lines)
        self.pid: int | None = None
        os.set_blocking(fd, False)

    def fileno(self) -> int:
        """Return the file descriptor to wait on."""
        return self._fd

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines that the process printed."""
        return tuple(self._tail)

    def read(self) -> list[LogLine] | None:
        """Return the lines that have arrived, or None when no process can write any more."""
        try:
            content = os.read(self._fd, _READ_LEN)
        except BlockingIOError:
            return []
        return self._feed(content) if content else None

    def drain(self) -> list[LogLine]:
        """Return the lines of everything written so far, even if a process continues to write."""
        (waiting,) = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0" * 4))
        lines: list[LogLine] = []
        while waiting > 0:
            content = os.read(self._fd, min(waiting, _READ_LEN))
            waiting -= len(content)
            lines += self._feed(content)
        return lines

    def finish(self) -> list[LogLine]:
        """Return the lines of everything written so far, including an incomplete last line."""
        return self.drain() + self._lines(self._splitter.finish())

    def close(self) -> None:
        """Close the pipe and the file."""
        os.close(self._fd)
        if self._file is not None:
            self._file.close()

    def _feed(self, content: bytes) -> list[LogLine]:
        if content.startswith(PID_TAG) and self.pid is None:
            # This is the first output, and it is short enough to arrive in one piece.
            pid, _, content = content[1:].partition(b"\n")
            self.pid = int(pid)
        return self._lines(self._splitter.feed(content)) if content else []

    def _lines(self, found: list[tuple[Stream, str]]) -> list[LogLine]:
        if not found:
            return []
        now = time.time()
        slot, incarnation, name = self.slot, self.incarnation, self.name
        lines = [LogLine(slot, incarnation, name, stream, text, now) for stream, text in found]
        self._tail.extend([text for _, text in found])
        if self._path is not None:
            self._keep(self._path, "".join([text + "\n" for _, text in found]))
        return lines

    def _keep(self, path: Path, text: str) -> None:
        try:
            if self._file is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("ab", buffering=0)
            self._file.write(text.encode("utf-8", "replace"))
        except OSError as error:
            self._path = None
            print(f"mesh: cannot keep the log of {self.name}: {error}", file=sys.stderr)


class LogForwarder:
    """Passes lines to a callback on a separate thread, so that a slow one delays nothing else.

    The queue is bounded: while `is_full`, the owner of the pipes stops reading them, so their
    writers block. `on_capacity` is called when the queue has capacity again.
    """

    def __init__(
        self,
        on_log: Callable[[LogLine], None],
        on_capacity: Callable[[], None],
        queue_len_max: int = 16_384,
        queue_chars_max: int = 8 * 1024 * 1024,
    ) -> None:
        self._on_log = on_log
        self._on_capacity = on_capacity
        self._queue_len_max = queue_len_max
        self._queue_chars_max = queue_chars_max
        self._condition = threading.Condition()
        self._batches: deque[list[LogLine]] = deque()
        self._line_count = 0
        self._char_count = 0
        self._put_count = 0
        self._done_count = 0
        # Counts lines, not batches. It is only informative, so it grows without the lock.
        self._handed_count = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        """Whether the queue is full; it keeps lines that are put while it is full."""
        return self._line_count >= self._queue_len_max or self._char_count >= self._queue_chars_max

    def put(self, lines: list[LogLine]) -> None:
        """Add lines to the queue; never blocks."""
        if not lines:
            return
        with self._condition:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mesh-log", daemon=True)
                self._thread.start()
            self._batches.append(lines)
            self._line_count += len(lines)
            self._char_count += sum([len(line.text) for line in lines])
            self._put_count += 1
            self._condition.notify_all()

    def flush(self, limit_s: float) -> bool:
        """Wait until all lines put so far have been passed on; return whether they have been.

        Args:
            limit_s: Maximum time to wait without a single line being passed on, in seconds.
        """
        if threading.current_thread() is self._thread:
            return False
        with self._condition:
            goal = self._put_count
            return wait_while_moving(
                self._condition,
                lambda: self._done_count >= goal,
                lambda: self._handed_count,
                limit_s,
            )

    def close(self, limit_s: float) -> bool:
        """End the thread after it has passed on the queued lines; return whether it has ended."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        if self._thread is None:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._batches or self._is_closed)
                if not self._batches:
                    return
                lines = self._batches.popleft()
            for line in lines:
                try:
                    self._on_log(line)
                except Exception:
                    traceback.print_exc()
                self._handed_count += 1
            with self._condition:
                was_full = self.is_full
                self._line_count -= len(lines)
                self._char_count -= sum([len(line.text) for line in lines])
                self._done_count += 1
                has_capacity = was_full and not self.is_full
                self._condition.notify_all()
            if has_capacity:
                self._on_capacity()


def wait_while_moving(
    condition: threading.Condition,
    is_done: Callable[[], bool],
    position: Callable[[], int],
    limit_s: float,
) -> bool:
    """Wait for a condition while progress is made; return whether the condition became true.

    Args:
        condition: Held by the caller, and notified when the condition may be true.
        is_done: Returns whether the condition is true.
        position: Returns a measure of the progress.
        limit_s: Maximum time to wait without progress, in seconds.
    """
    before = position()
    while not condition.wait_for(is_done, limit_s):
        if position() == before:
            return False
        before = position()
    return True
