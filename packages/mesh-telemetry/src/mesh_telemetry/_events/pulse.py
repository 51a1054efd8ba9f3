"""A file in the folder of a process that says whether all that has happened is in its other files.

Who reads looks there, and asks the process to write only what is missing: most have nothing.
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
        folder: That of the process.

    Attributes:
        happened: A view of the count of events, to which 1 is added when one happens. It begins as
            if one had, so that nobody takes what was just begun for complete.
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
        """Says what can be read now.

        Args:
            written: The count of events when those were taken that are in files now.
            endpoint_count: How many endpoints have their names in a file.
        """
        self._words[2] = endpoint_count
        self._words[1] = written


class PulseRead(NamedTuple):
    """What a process says of its files."""

    happened: int
    written: int
    endpoint_count: int


def read_pulse(folder: str) -> PulseRead | None:
    """Reads what a process says of its files; None where it does not."""
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
