"""Segment files: what a process has recorded of one family, in pieces of which the oldest go first.

Lines are written at the end of a segment, each in one piece with its neighbours, so that what a
killed process leaves is whole but for the last of them. Messages are written by the core, into
files that have their length before (`message_segments.py`) and say themselves how many there are. A
reader takes what is there; a segment that is removed meanwhile stays readable for who has it open.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mesh_core.spi import LOG_HEADER, MESSAGE_RECORD
from mesh_telemetry._events.sealed_segments import SealedSegments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import FileIO

__all__ = [
    "FAMILIES",
    "LINES_HEADER",
    "MESSAGES",
    "PARTS",
    "SEGMENT_SUFFIX",
    "Segment",
    "SegmentWriter",
    "message_counts",
    "message_header",
    "message_length",
    "read_lines",
    "read_messages",
    "segments_of",
]

#: The families of events, and which part of the room of a process each may take, in parts of their
#: sum.
FAMILIES = {"messages": 10, "lives": 2, "logs": 2, "spans": 2, "metrics": 2, "rows": 2}
LINES_HEADER = b"MESHLIN1\n"

#: The family that the core writes.
MESSAGES = "messages"
#: In so many segments does a family have what it may.
PARTS = 8
SEGMENT_SUFFIX = ".seg"

_MESSAGES_MARK = b"MESHMSG3"


class Segment(NamedTuple):
    """A segment file, as its name tells it."""

    path: str
    family: str
    number: int
    """Counts the segments of a family in a process, from 1."""
    first_us: int
    """When the first event in it happened, in microseconds since the epoch."""

    def length(self) -> int | None:
        """Says how many bytes were written to it; None when it is gone."""
        if self.family == MESSAGES:
            counts = message_counts(self.path)
            return None if counts is None else message_length(counts[0])
        try:
            return os.stat(self.path).st_size
        except OSError:
            return None

    def last_us(self) -> int | None:
        """Says when it was last written to: nothing in it is younger; None when it is gone."""
        try:
            written_us = os.stat(self.path).st_mtime_ns // 1000
        except OSError:
            return None
        length = self.length() if self.family == MESSAGES else None
        if length is None or length == message_length(0):
            return written_us
        # A file does not know when it was written to through memory.
        last = read_messages(self.path, (length - MESSAGE_RECORD.size, length))
        if last is None or not last[1]:
            return written_us
        time_ns, *_ = MESSAGE_RECORD.unpack(last[1])
        return int(time_ns + last[0]) // 1000


class SegmentWriter:
    """Writes the segments of one family of lines, within a number of bytes.

    Args:
        folder: That of the process.
        family: Which events.
        bytes_max: How much room all its segments may take.
        retention_s: After how many seconds a segment goes.
        spill: Where segments go that have no room here; they are removed if left out.

    Attributes:
        sealed: Those that nothing more comes into.
    """

    def __init__(
        self,
        folder: Path,
        family: str,
        bytes_max: int,
        retention_s: float,
        spill: Path | None = None,
    ) -> None:
        self._folder = folder
        self._family = family
        self._bytes_max = bytes_max
        self._segment_bytes = max(bytes_max // PARTS, len(LINES_HEADER) + 1)
        self._retention_s = retention_s
        self.sealed = SealedSegments(retention_s, spill)
        self._fd = -1
        self._path = folder
        self._number = 0
        self._opened_s = 0.0
        self._bytes = 0
        self._count = 0

    @property
    def room(self) -> int:
        """How many bytes one piece may have."""
        return self._segment_bytes - len(LINES_HEADER)

    def append(self, piece: bytes, count: int, first_us: int) -> None:
        """Adds whole lines, `count` of them, the first of which is of `first_us`.

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
        self.sealed.add(self._path, self._bytes, self._count)
        self._bytes = self._count = 0

    def expire(self) -> None:
        """Removes what is too old."""
        now = time.time()
        if self._fd >= 0 and now - self._opened_s > self._retention_s / PARTS:
            self.seal()
        self.sealed.expire()

    def evict(self) -> bool:
        """Removes the oldest segment; says whether there was one."""
        if self.sealed.evict():
            return True
        self.seal()
        return self.sealed.evict()

    def close(self) -> None:
        """Ends writing; a fork that calls this harms nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _make_room(self, length: int) -> None:
        needed = length + (len(LINES_HEADER) if self._fd < 0 else 0)
        self.sealed.shrink(self._bytes_max - self._bytes - needed)

    def _open(self, first_us: int) -> None:
        self._number += 1
        name = f"{self._family}.{self._number:08d}.{first_us}{SEGMENT_SUFFIX}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._path = self._folder / name
        self._fd = os.open(self._path, flags, 0o600)
        self._opened_s = time.time()
        self._bytes = self._count = 0
        try:
            os.write(self._fd, LINES_HEADER)
        except OSError:
            self.close()
            with suppress(OSError):
                os.unlink(self._path)
            raise
        self._bytes = len(LINES_HEADER)


def message_header(time_base_ns: int, count: int = 0) -> bytes:
    """Gives what a segment of messages begins with: what to add to the times of its records."""
    return LOG_HEADER.pack(_MESSAGES_MARK, time_base_ns, count, 0, 0)


def message_length(count: int) -> int:
    """Says how long a segment of so many messages is, in bytes."""
    return LOG_HEADER.size + count * MESSAGE_RECORD.size


def message_counts(path: str) -> tuple[int, int, int] | None:
    """Says of a segment of messages how many it has, how many endpoints, and how many wait.

    What waits happened after them, and is not in a file yet. None when the segment is gone, or is
    none.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            found = _read_header(file)
    except OSError:
        return None
    return None if found is None else found[1:]


def segments_of(folder: str | Path, family: str) -> list[Segment]:
    """Gives the segments of a family in a folder, oldest first."""
    found = []
    start = f"{family}."
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(start) and name.endswith(SEGMENT_SUFFIX):
                _, number, first_us, _ = name.split(".")
                path = os.path.join(folder, name)
                found.append(Segment(path, family, int(number), int(first_us)))
    return sorted(found, key=_number)


def _number(segment: Segment) -> int:
    return segment.number


def read_messages(path: str, span: tuple[int, int] | None = None) -> tuple[int, bytes] | None:
    """Gives the records of a segment, and what to add to their times.

    None when the segment is gone, or is none.

    Args:
        path: The file.
        span: Only what has come when it was longer than the first, and not longer than the
            second of these lengths, in bytes.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            header = _read_header(file)
            if header is None:
                return None
            time_base_ns, count, _, _ = header
            start, end = span or (0, sys.maxsize)
            start, end = max(start, LOG_HEADER.size), min(end, message_length(count))
            file.seek(start)
            content = file.read(max(0, end - start))
    except OSError:
        return None
    return time_base_ns, content[: len(content) // MESSAGE_RECORD.size * MESSAGE_RECORD.size]


def _read_header(file: FileIO) -> tuple[int, int, int, int] | None:
    header = file.read(LOG_HEADER.size)
    if len(header) < LOG_HEADER.size:
        return None
    mark, time_base_ns, count, endpoint_count, waiting_count = LOG_HEADER.unpack(header)
    return (time_base_ns, count, endpoint_count, waiting_count) if mark == _MESSAGES_MARK else None


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
