"""A file in the folder of a process that shows whether its other files are up to date.

A reader checks this file first, and requests a write only from processes with unwritten events.
Most processes have none.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["WriteProgress", "WriteProgressFile", "read_write_progress"]

_FILE_NAME = "progress"
_WORDS = Struct("<QQQ")


class WriteProgressFile:
    """Writer of the file.

    Args:
        folder: The folder of the process.

    Attributes:
        event_count: View of the counter of events, which is incremented for each event. It starts
            at 1, so that a process that has just begun does not look complete.
    """

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(folder / _FILE_NAME, flags, 0o600)
        try:
            os.posix_fallocate(file, 0, _WORDS.size)
            self._memory = mmap.mmap(file, _WORDS.size)
        finally:
            os.close(file)
        self._words = memoryview(self._memory).cast("Q")
        self.event_count: memoryview = self._words[:1]
        self.event_count[0] = 1

    def publish(self, written_count: int, endpoint_count: int) -> None:
        """Publish how much can be read now.

        Args:
            written_count: The value of the event counter up to which events are in files.
            endpoint_count: The number of endpoints whose names are in a file.
        """
        self._words[2] = endpoint_count
        self._words[1] = written_count


class WriteProgress(NamedTuple):
    """The published state of a process's files."""

    event_count: int
    written_count: int
    endpoint_count: int


def read_write_progress(folder: str) -> WriteProgress | None:
    """Read the state of a process's files; None if there is none."""
    try:
        file = os.open(f"{folder}/{_FILE_NAME}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.read(file, _WORDS.size)
    except OSError:
        return None
    finally:
        os.close(file)
    return WriteProgress(*_WORDS.unpack(content)) if len(content) == _WORDS.size else None
