"""Segment files: what a process has recorded of one family, in pieces of which the oldest go first.

A segment is written at its end only, a record or a line in one piece with its neighbours, so that
what a killed process leaves is whole but for the last of them. A reader takes what is there; a
segment that is removed meanwhile stays readable for who has it open.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mesh_core.spi import MESSAGE_RECORD
from mesh_telemetry._events.moving import move_segment

__all__ = [
    "FAMILIES",
    "LINES_HEADER",
    "Segment",
    "SegmentWriter",
    "message_header",
    "read_lines",
    "read_messages",
    "segments_of",
]

#: The families of events, and which part of the room of a process each may take, in parts of their
#: sum.
FAMILIES = {"messages": 10, "lives": 2, "logs": 2, "spans": 2, "metrics": 2, "rows": 2}
LINES_HEADER = b"MESHLIN1\n"

_PARTS = 8
_SUFFIX = ".seg"
_MESSAGES = struct.Struct("<8sq")
_MESSAGES_MARK = b"MESHMSG2"


class Segment(NamedTuple):
    """A segment file, as its name tells it."""

    path: str
    family: str
    number: int
    """Counts the segments of a family in a process, from 1."""
    first_us: int
    """When the first event in it happened, in microseconds since the epoch."""


class _Kept(NamedTuple):
    path: Path
    length: int
    event_count: int
    last_s: float


class SegmentWriter:
    """Writes the segments of one family, within a number of bytes.

    Args:
        folder: That of the process.
        family: Which events.
        bytes_max: How much room all its segments may take.
        retention_s: After how many seconds a segment goes.
        header: What each segment begins with.
        spill: Where segments go that have no room here; they are removed if left out.
    """

    def __init__(
        self,
        folder: Path,
        family: str,
        bytes_max: int,
        retention_s: float,
        header: bytes,
        spill: Path | None = None,
    ) -> None:
        self._folder = folder
        self._family = family
        self._bytes_max = bytes_max
        self._segment_bytes = max(bytes_max // _PARTS, len(header) + 1)
        self._retention_s = retention_s
        self._header = header
        self._spill = spill
        self._sealed: deque[_Kept] = deque()
        self._sealed_bytes = 0
        self._fd = -1
        self._path = folder
        self._number = 0
        self._opened_s = 0.0
        self._bytes = 0
        self._count = 0
        #: What had no room, since somebody has last set these to 0.
        self.evicted_count = 0
        self.evicted_bytes = 0

    @property
    def room(self) -> int:
        """How many bytes one piece may have."""
        return self._segment_bytes - len(self._header)

    def append(self, piece: bytes, count: int, first_us: int) -> None:
        """Adds whole records or lines, `count` of them, the first of which is of `first_us`.

        Raises:
            OSError: It cannot be written, as when the disk is full; nothing is added then.
        """
        assert len(piece) <= self.room, "the caller cuts what it writes into pieces"
        if self._fd >= 0 and self._bytes + len(piece) > self._segment_bytes:
            self.seal()
        self._make_room(len(piece))
        if self._fd < 0:
            self._open(first_us)
        written = 0
        try:
            while written < len(piece):
                written += os.write(self._fd, piece[written:] if written else piece)
        except OSError:
            # What was written of it would tear whatever comes next.
            with suppress(OSError):
                os.ftruncate(self._fd, self._bytes)
            raise
        self._bytes += len(piece)
        self._count += count

    def seal(self) -> None:
        """Begins another segment with the next piece."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self._sealed.append(_Kept(self._path, self._bytes, self._count, time.time()))
        self._sealed_bytes += self._bytes
        self._bytes = self._count = 0

    def expire(self) -> None:
        """Removes what is too old."""
        now = time.time()
        if self._fd >= 0 and now - self._opened_s > self._retention_s / _PARTS:
            self.seal()
        while self._sealed and now - self._sealed[0].last_s > self._retention_s:
            self._drop_oldest()

    def evict(self) -> bool:
        """Removes the oldest segment; says whether there was one."""
        if not self._sealed:
            self.seal()
        if not self._sealed:
            return False
        oldest, is_moved = self._drop_oldest()
        if not is_moved:
            self.evicted_count += oldest.event_count
            self.evicted_bytes += oldest.length
        return True

    def close(self) -> None:
        """Ends writing; a fork that calls this harms nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _make_room(self, length: int) -> None:
        needed = length + (len(self._header) if self._fd < 0 else 0)
        while self._sealed and self._sealed_bytes + self._bytes + needed > self._bytes_max:
            self.evict()

    def _open(self, first_us: int) -> None:
        self._number += 1
        name = f"{self._family}.{self._number:08d}.{first_us}{_SUFFIX}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._path = self._folder / name
        self._fd = os.open(self._path, flags, 0o600)
        self._opened_s = time.time()
        self._bytes = self._count = 0
        try:
            os.write(self._fd, self._header)
        except OSError:
            self.close()
            with suppress(OSError):
                os.unlink(self._path)
            raise
        self._bytes = len(self._header)

    def _drop_oldest(self) -> tuple[_Kept, bool]:
        """Moves the oldest segment away, or removes it; says which, and whether it was moved."""
        oldest = self._sealed.popleft()
        self._sealed_bytes -= oldest.length
        if self._spill is not None:
            with suppress(OSError):
                move_segment(oldest.path, self._spill)
                return oldest, True
        with suppress(OSError):
            os.unlink(oldest.path)
        return oldest, False


def message_header(time_base_ns: int) -> bytes:
    """Gives what a segment of messages begins with: what to add to the times of its records."""
    return _MESSAGES.pack(_MESSAGES_MARK, time_base_ns)


def segments_of(folder: Path, family: str) -> list[Segment]:
    """Gives the segments of a family in a folder, oldest first."""
    found = []
    with suppress(OSError):
        for name in os.listdir(folder):
            parts = name.split(".")
            if len(parts) == 4 and parts[0] == family and name.endswith(_SUFFIX):
                path = os.path.join(folder, name)
                found.append(Segment(path, family, int(parts[1]), int(parts[2])))
    return sorted(found, key=lambda segment: segment.number)


def read_messages(path: str, span: tuple[int, int] | None = None) -> tuple[int, bytes] | None:
    """Gives the records of a segment, without a torn one, and what to add to their times.

    None when the segment is gone, or has nothing.

    Args:
        path: The file.
        span: Only what has come when it was longer than the first, and not longer than the
            second of these lengths, in bytes.
    """
    start, end = span or (0, sys.maxsize)
    try:
        with open(path, "rb", buffering=0) as file:
            header = file.read(_MESSAGES.size)
            # A record that was torn at the start is whole now.
            before = max(0, start - _MESSAGES.size) // MESSAGE_RECORD.size * MESSAGE_RECORD.size
            file.seek(_MESSAGES.size + before)
            content = file.read(end - file.tell() if span else -1)
    except (OSError, ValueError):
        return None
    if len(header) < _MESSAGES.size:
        return None
    mark, time_base_ns = _MESSAGES.unpack(header)
    if mark != _MESSAGES_MARK:
        return None
    return time_base_ns, content[: len(content) // MESSAGE_RECORD.size * MESSAGE_RECORD.size]


def read_lines(path: str, length: int | None = None) -> list[bytes]:
    """Gives the lines of a segment, or of its first bytes, without a torn one.

    None of them when the segment is gone.
    """
    try:
        content = Path(path).read_bytes()[:length]
    except OSError:
        return []
    if not content.startswith(LINES_HEADER):
        return []
    return content[len(LINES_HEADER) :].split(b"\n")[:-1]
