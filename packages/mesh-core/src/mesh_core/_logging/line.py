"""A line that a process has printed."""

from typing import Literal, NamedTuple

__all__ = ["LogLine", "Stream"]

Stream = Literal["stdout", "stderr"]


class LogLine(NamedTuple):
    """A line that a process has printed."""

    slot: int
    incarnation: int
    name: str
    stream: Stream
    text: str
    """The text without the line feed; bytes that are not valid UTF-8 are replaced."""
    time: float
    """When the controller read the line, in seconds since the epoch."""
