"""One line that a process has printed."""

from typing import Literal, NamedTuple

__all__ = ["LogLine", "Stream"]

Stream = Literal["stdout", "stderr"]


class LogLine(NamedTuple):
    """One line that a process has printed."""

    slot: int
    incarnation: int
    name: str
    stream: Stream
    text: str
    """Without the line feed; what is not UTF-8 is replaced."""
    time: float
    """Seconds since the epoch, when the controller read it."""
