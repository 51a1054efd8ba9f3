"""Message segments: files that the core writes as messages happen, provided to it in advance."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core.spi import MessageLog
from mesh_telemetry._events.sealed_segments import SealedSegments
from mesh_telemetry._events.segment_export import INCOMPLETE_SUFFIX
from mesh_telemetry._events.segments import (
    MESSAGES,
    SEGMENT_SUFFIX,
    SEGMENTS_PER_FAMILY,
    message_header,
    message_length,
)

if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["MessageSegments"]

# The first file is small, so that a program with few messages takes little space.
_FIRST_LEN = 1 << 16
_HEADER_LEN = message_length(0)
_LEN_MIN = message_length(1)


class MessageSegments:
    """Stores a log of messages in files within a limit of bytes.

    Args:
        folder: The folder of the process.
        log: The log that writes to the files.
        bytes_max: Limit for all files together.
        retention_s: Age in seconds at which a segment is removed.
        spill: The folder to which evicted segments are moved; they are deleted if omitted.

    Attributes:
        sealed: The segments that are complete.
        dropped: The number of messages that were lost because no file was available in time.
        has_no_space: Whether the space for the next file is insufficient.
    """

    def __init__(
        self,
        folder: Path,
        log: MessageLog,
        bytes_max: int,
        retention_s: float,
        spill: Path | None = None,
    ) -> None:
        self.sealed = SealedSegments(retention_s, spill)
        self.dropped = 0
        self.has_no_space = False
        self._folder = folder
        self._log = log
        self._bytes_max = bytes_max
        self._retention_s = retention_s
        self._number = 0
        self._length = min(_FIRST_LEN, self._length_max)
        self._unused: dict[Path, int] = {}
        self._open: dict[Path, int] = {}
        self._opened_s = 0.0
        self._used = 0
        self.prepare()

    @property
    def _length_max(self) -> int:
        # Two segments are not sealed: the one being written, and the next one.
        return max(self._bytes_max // SEGMENTS_PER_FAMILY, _LEN_MIN)

    @property
    def free_bytes(self) -> int:
        """The number of bytes that can be written before another file is needed."""
        return sum(self._unused.values()) + sum(self._open.values()) - self._used

    def prepare(self) -> int:
        """Ensure that the log has a file to write to; return the bytes written since last time."""
        state = self._log.state()
        written = self._update(state)
        # Waiting messages may fill more than one file.
        for _ in range(SEGMENTS_PER_FAMILY):
            if not state.wants_file or not self._prepare():
                break
            state = self._log.state()
            written += self._update(state)
        return written

    def expire(self) -> None:
        """Remove expired segments, and keep the open file from looking expired."""
        now = time.time()
        if (
            self._used > _HEADER_LEN
            and now - self._opened_s > self._retention_s / SEGMENTS_PER_FAMILY
        ):
            self._log.turn()
            self.prepare()
        for path in self._open:
            # Writes through mapped memory do not update the modification time.
            with suppress(OSError):
                os.utime(path)
        self.sealed.expire()

    def close(self) -> None:
        """Stop writing."""
        self._update(self._log.close())
        for path in self._unused:
            path.unlink(missing_ok=True)

    def _update(self, state: MessageLog.State) -> int:
        written = state.used - self._used
        self._used = state.used
        self.dropped += state.dropped
        for path in state.begun:
            number = int(path.name.split(".")[1])
            unused = self._path(number)
            self._open[path] = self._unused.pop(unused)
            self._opened_s = time.time()
        for path, length in state.ended:
            written += length
            self._open.pop(path)
            with suppress(OSError):
                os.truncate(path, length)
            self.sealed.add(path, length, (length - _HEADER_LEN) // MessageLog.RECORD.size)
        return written

    def _prepare(self) -> bool:
        """Pass another file to the log; return whether there was space for it."""
        self._number += 1
        path, length = self._path(self._number), self._length
        kept = sum(self._unused.values()) + sum(self._open.values())
        self.sealed.shrink(self._bytes_max - kept - length)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            file = os.open(path, flags, 0o600)
        except OSError:
            self.has_no_space = True
            return False
        try:
            os.write(file, message_header(self._log.time_base_ns))
            self._allocate(file, length)
            prefix = str(self._folder / f"{MESSAGES}.{self._number:08d}.")
            self._log.extend(file, length, path, prefix, SEGMENT_SUFFIX)
        except OSError:
            path.unlink(missing_ok=True)
            self.has_no_space = True
            return False
        finally:
            os.close(file)
        self._unused[path] = length
        self._length = min(2 * length, self._length_max)
        self.has_no_space = False
        return True

    def _allocate(self, file: int, length: int) -> None:
        """Allocate all pages of a file; if the disk is full, evict older segments to free space.

        Raises:
            OSError: All segments have been evicted, and the space is still insufficient.
        """
        while True:
            try:
                os.posix_fallocate(file, 0, length)
            except OSError:
                if not self._folder.is_dir() or not self.sealed.evict():
                    raise
            else:
                return

    def _path(self, number: int) -> Path:
        return self._folder / f"{MESSAGES}.{number:08d}{INCOMPLETE_SUFFIX}"
