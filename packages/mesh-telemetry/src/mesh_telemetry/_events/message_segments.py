"""Segments of messages: files that the core writes to as messages happen, handed to it ahead."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core.spi import MESSAGE_RECORD
from mesh_telemetry._events.moving import COMING
from mesh_telemetry._events.sealed_segments import SealedSegments
from mesh_telemetry._events.segments import (
    MESSAGES,
    PARTS,
    SEGMENT_SUFFIX,
    message_header,
    message_length,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_core.spi import LogState, MessageLog

__all__ = ["MessageSegments"]

# A program that does little takes little room.
_FIRST_LEN = 1 << 16
_HEADER_LEN = message_length(0)
_LEN_MIN = message_length(1)


class MessageSegments:
    """Keeps a log of messages in files, within a number of bytes.

    Args:
        folder: That of the process.
        log: What writes them.
        bytes_max: How much room all of them may take.
        retention_s: After how many seconds a segment goes.
        spill: Where segments go that have no room here; they are removed if left out.

    Attributes:
        sealed: Those that nothing more comes into.
        dropped: How many messages were lost because no file was there in time.
        is_short: Whether there is no room for the next file.
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
        self.is_short = False
        self._folder = folder
        self._log = log
        self._bytes_max = bytes_max
        self._retention_s = retention_s
        self._number = 0
        self._length = min(_FIRST_LEN, self._length_max)
        self._coming: dict[Path, int] = {}
        self._open: dict[Path, int] = {}
        self._opened_s = 0.0
        self._used = 0
        self.tend()

    @property
    def _length_max(self) -> int:
        # Two of them are not sealed: the one that is written to, and the next.
        return max(self._bytes_max // PARTS, _LEN_MIN)

    @property
    def ahead(self) -> int:
        """How many bytes there is room for before another file is needed."""
        return sum(self._coming.values()) + sum(self._open.values()) - self._used

    def tend(self) -> int:
        """Sees that there is a file for what comes next; says how many bytes have come since."""
        state = self._log.state()
        came = self._note(state)
        # What waits may fill more than one.
        for _ in range(PARTS):
            if not state.wants_file or not self._prepare():
                break
            state = self._log.state()
            came += self._note(state)
        return came

    def expire(self) -> None:
        """Removes what is too old, and says of the file that is written to that it is not."""
        now = time.time()
        if self._used > _HEADER_LEN and now - self._opened_s > self._retention_s / PARTS:
            self._log.turn()
            self.tend()
        for path in self._open:
            # What comes through memory does not do this.
            with suppress(OSError):
                os.utime(path)
        self.sealed.expire()

    def close(self) -> None:
        """Ends writing."""
        self._note(self._log.close())
        for path in self._coming:
            path.unlink(missing_ok=True)

    def _note(self, state: LogState) -> int:
        came = state.used - self._used
        self._used = state.used
        self.dropped += state.dropped
        for path in state.begun:
            number = int(path.name.split(".")[1])
            coming = self._path(number)
            self._open[path] = self._coming.pop(coming)
            self._opened_s = time.time()
        for path, length in state.ended:
            came += length
            self._open.pop(path)
            with suppress(OSError):
                os.truncate(path, length)
            self.sealed.add(path, length, (length - _HEADER_LEN) // MESSAGE_RECORD.size)
        return came

    def _prepare(self) -> bool:
        """Hands another file over; says whether there was room for it."""
        self._number += 1
        path, length = self._path(self._number), self._length
        kept = sum(self._coming.values()) + sum(self._open.values())
        self.sealed.shrink(self._bytes_max - kept - length)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            file = os.open(path, flags, 0o600)
        except OSError:
            self.is_short = True
            return False
        try:
            os.write(file, message_header(self._log.time_base_ns))
            self._allocate(file, length)
            prefix = str(self._folder / f"{MESSAGES}.{self._number:08d}.")
            self._log.extend(file, length, path, prefix, SEGMENT_SUFFIX)
        except OSError:
            path.unlink(missing_ok=True)
            self.is_short = True
            return False
        finally:
            os.close(file)
        self._coming[path] = length
        self._length = min(2 * length, self._length_max)
        self.is_short = False
        return True

    def _allocate(self, file: int, length: int) -> None:
        """Gives a file all of its pages; where the disk is full, those of older ones.

        Raises:
            OSError: There are none left.
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
        return self._folder / f"{MESSAGES}.{number:08d}{COMING}"
