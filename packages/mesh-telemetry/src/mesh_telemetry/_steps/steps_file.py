"""The latest training steps of a process, in a file that others can read at any time.

The process writes to mapped memory only. The file has a header and a ring of records of equal size.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from mesh_telemetry._collectives.mapped_file import mapped_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Step", "StepsFile", "read_steps"]

_FILE_NAME = "steps"
_MAGIC = b"meshstp1"
_HEADER_LEN = 64
# Position from 1, number, began, ended, nanoseconds for input, nanoseconds in collectives.
_RECORD = Struct("<Qqqqqq")
_COUNT = 512


class Step(NamedTuple):
    """A training step of one process."""

    number: int
    began_ns: int
    """When the previous step ended, in nanoseconds since the epoch."""
    ended_ns: int
    input_ns: int
    """The time in which it waited for a data loader."""
    communication_ns: int
    """The time in which at least one collective was in progress."""

    @property
    def duration_ns(self) -> int:
        """The time from the end of the previous step."""
        return self.ended_ns - self.began_ns

    @property
    def compute_ns(self) -> int:
        """The rest of the time."""
        return max(self.duration_ns - self.input_ns - self.communication_ns, 0)


class StepsFile:
    """Writer of the file.

    Args:
        folder: The folder of the process.
    """

    def __init__(self, folder: Path) -> None:
        length = _HEADER_LEN + _COUNT * _RECORD.size
        self._memory = mapped_file(folder / _FILE_NAME, length)
        self._memory[: len(_MAGIC)] = _MAGIC
        self._written = 0

    def add(self, step: Step) -> None:
        """Write a step; it replaces the oldest one if there is no more space."""
        at = _HEADER_LEN + self._written % _COUNT * _RECORD.size
        self._written += 1
        _RECORD.pack_into(self._memory, at, self._written, *step)


def read_steps(folder: str) -> list[Step]:
    """Read the latest steps of a process, oldest first."""
    try:
        with open(f"{folder}/{_FILE_NAME}", "rb") as file:
            content = file.read()
    except OSError:
        return []
    records = content[_HEADER_LEN:] if content.startswith(_MAGIC) else b""
    whole = len(records) // _RECORD.size * _RECORD.size
    found = [one for one in _RECORD.iter_unpack(records[:whole]) if one[0]]
    return [Step(*fields) for _, *fields in sorted(found)]
