"""A file in the folder of a process that shows whether its other files are up to date.

A reader looks there first and requests a write only from processes with unwritten events: most have
none.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Pulse", "PulseRead", "read_pulse"]

_NAME = "pulse"
_WORDS = Struct("<QQQ")


class Pulse:
    """The writing end.

    Args:
        folder: The folder of the process.

    Attributes:
        happened: View of the counter of events, which is incremented for each event. It starts at
            1, so that a process that has just begun does not look complete.
    """

    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(folder / _NAME, flags, 0o600)
        try:
            os.posix_fallocate(file, 0, _WORDS.size)
            self._memory = mmap.mmap(file, _WORDS.size)
        finally:
            os.close(file)
        self._words = memoryview(self._memory).cast("Q")
        self.happened: memoryview = self._words[:1]
        self.happened[0] = 1

    def tell(self, written: int, endpoint_count: int) -> None:
        """Publish what can be read now.

        Args:
            written: The value of the event counter up to which events are in files.
            endpoint_count: The number of endpoints whose names are in a file.
        """
        self._words[2] = endpoint_count
        self._words[1] = written


class PulseRead(NamedTuple):
    """The published state of a process's files."""

    happened: int
    written: int
    endpoint_count: int


def read_pulse(folder: str) -> PulseRead | None:
    """Read the state of a process's files; None if there is none."""
    try:
        file = os.open(f"{folder}/{_NAME}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.read(file, _WORDS.size)
    except OSError:
        return None
    finally:
        os.close(file)
    return PulseRead(*_WORDS.unpack(content)) if len(content) == _WORDS.size else None
