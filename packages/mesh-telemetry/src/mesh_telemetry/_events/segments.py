"""Segment files: the events of one family of a process, in files that are evicted oldest first.

Lines are appended to a segment in blocks, each with a single write, so that only the last block of
a killed process can be torn. Messages are written by the core into files of fixed length (see
`message_segments.py`) whose header has the number of messages. A reader takes what is present; a
segment that is removed while it is open stays readable.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mesh_core.spi import MessageLog
from mesh_telemetry._events.sealed_segments import SealedSegments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import FileIO

__all__ = [
    "FAMILIES",
    "LINES_HEADER",
    "MESSAGES",
    "SEGMENTS_PER_FAMILY",
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

#: The families of events with their share of the space of a process, relative to the sum of all
#: shares.
FAMILIES = {"messages": 10, "lifecycle": 2, "logs": 2, "spans": 2, "metrics": 2, "rows": 2}
LINES_HEADER = b"MESHLIN1\n"

#: The family that the core writes.
MESSAGES = "messages"
#: The number of segments among which the space of a family is divided.
SEGMENTS_PER_FAMILY = 8
SEGMENT_SUFFIX = ".seg"

_MESSAGES_MAGIC = b"MESHMSG3"


class Segment(NamedTuple):
    """A segment file, as described by its name."""

    path: str
    family: str
    number: int
    """The number of the segment in its family and process, from 1."""
    first_us: int
    """The time of its first event, in microseconds since the epoch."""

    def length(self) -> int | None:
        """Return the number of bytes written to it; None if it has been removed."""
        if self.family == MESSAGES:
            counts = message_counts(self.path)
            return None if counts is None else message_length(counts[0])
        try:
            return os.stat(self.path).st_size
        except OSError:
            return None

    def last_us(self) -> int | None:
        """Return the time of the last write in microseconds; None if it has been removed.

        No event in the segment is newer.
        """
        try:
            written_us = os.stat(self.path).st_mtime_ns // 1000
        except OSError:
            return None
        length = self.length() if self.family == MESSAGES else None
        if length is None or length == message_length(0):
            return written_us
        # Writes through mapped memory do not update the modification time.
        last = read_messages(self.path, (length - MessageLog.RECORD.size, length))
        if last is None or not last[1]:
            return written_us
        time_ns, *_ = MessageLog.RECORD.unpack(last[1])
        return int(time_ns + last[0]) // 1000


class SegmentWriter:
    """Writes the segments of one family of lines within a limit of bytes.

    Args:
        folder: The folder of the process.
        family: The family of events.
        bytes_max: Limit for all its segments together.
        retention_s: Age in seconds at which a segment is removed.
        spill: The folder to which evicted segments are moved; they are deleted if omitted.

    Attributes:
        sealed: The segments that are complete.
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
        self._segment_bytes = max(bytes_max // SEGMENTS_PER_FAMILY, len(LINES_HEADER) + 1)
        self._retention_s = retention_s
        self.sealed = SealedSegments(retention_s, spill)
        self._fd = -1
        self._path = folder
        self._number = 0
        self._opened_s = 0.0
        self._bytes = 0
        self._count = 0

    @property
    def block_len_max(self) -> int:
        """The maximum size of one block in bytes."""
        return self._segment_bytes - len(LINES_HEADER)

    def append(self, piece: bytes, count: int, first_us: int) -> None:
        """Append `count` whole lines, beginning with a line from `first_us`.

        Raises:
            OSError: They cannot be written, for example because the disk is full; nothing is added.
        """
        assert len(piece) <= self.block_len_max, "the caller cuts what it writes into pieces"
        if self._fd >= 0 and self._bytes + len(piece) > self._segment_bytes:
            self.seal()
        self._evict_for(len(piece))
        if self._fd < 0:
            self._open(first_us)
        written = 0
        try:
            while written < len(piece):
                written += os.write(self._fd, piece[written:] if written else piece)
        except OSError:
            # A partial block would corrupt the next one.
            with suppress(OSError):
                os.ftruncate(self._fd, self._bytes)
            raise
        self._bytes += len(piece)
        self._count += count

    def seal(self) -> None:
        """Complete the current segment; the next block begins another one."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self.sealed.add(self._path, self._bytes, self._count)
        self._bytes = self._count = 0

    def expire(self) -> None:
        """Remove segments that are older than the retention time."""
        now = time.time()
        if self._fd >= 0 and now - self._opened_s > self._retention_s / SEGMENTS_PER_FAMILY:
            self.seal()
        self.sealed.expire()

    def evict(self) -> bool:
        """Remove the oldest segment; return whether there was one."""
        if self.sealed.evict():
            return True
        self.seal()
        return self.sealed.evict()

    def close(self) -> None:
        """Stop writing; safe to call in a forked process."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _evict_for(self, length: int) -> None:
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
    """Return the header of a message segment with the offset of its timestamps."""
    return MessageLog.HEADER.pack(_MESSAGES_MAGIC, time_base_ns, count, 0, 0)


def message_length(count: int) -> int:
    """Return the size in bytes of a segment with `count` messages."""
    return MessageLog.HEADER.size + count * MessageLog.RECORD.size


def message_counts(path: str) -> tuple[int, int, int] | None:
    """Return the numbers of messages, endpoint names and waiting messages of a message segment.

    Waiting messages are newer than those in the segment and not yet in a file.

    Returns:
        The three numbers, or None if the file has been removed or is not a message segment.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            found = _read_header(file)
    except OSError:
        return None
    return None if found is None else found[1:]


def segments_of(folder: str | Path, family: str) -> list[Segment]:
    """Return the segments of a family in a folder, oldest first."""
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
    """Return the offset of the timestamps of a segment, and its records.

    Args:
        path: The file.
        span: Two lengths of the file in bytes: return only the records that were added between
            them.

    Returns:
        The offset in nanoseconds and the records, or None if the file has been removed or is not a
        message segment.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            header = _read_header(file)
            if header is None:
                return None
            time_base_ns, count, _, _ = header
            start, end = span or (0, sys.maxsize)
            start, end = max(start, MessageLog.HEADER.size), min(end, message_length(count))
            file.seek(start)
            content = file.read(max(0, end - start))
    except OSError:
        return None
    return time_base_ns, content[: len(content) // MessageLog.RECORD.size * MessageLog.RECORD.size]


def _read_header(file: FileIO) -> tuple[int, int, int, int] | None:
    header = file.read(MessageLog.HEADER.size)
    if len(header) < MessageLog.HEADER.size:
        return None
    mark, time_base_ns, count, endpoint_count, waiting_count = MessageLog.HEADER.unpack(header)
    return (time_base_ns, count, endpoint_count, waiting_count) if mark == _MESSAGES_MAGIC else None


def read_lines(path: str, length: int | None = None) -> list[bytes]:
    """Return the complete lines of a segment.

    Args:
        path: The file.
        length: Read only this many bytes from its start.

    Returns:
        The lines; none if the file has been removed.
    """
    try:
        content = Path(path).read_bytes()[:length]
    except OSError:
        return []
    if not content.startswith(LINES_HEADER):
        return []
    return content[len(LINES_HEADER) :].split(b"\n")[:-1]
