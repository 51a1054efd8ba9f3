"""Log of the messages of this process, which the core writes to memory-mapped files.

Another process reads the files. It needs no cooperation of this process and can read them even
after this process was killed. docs/protocol/events.md specifies the format of a file.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from mesh_core._observability.events import MESSAGE_KINDS, MESSAGE_RECORD, recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import ClassVar, TypeAlias

    from mesh_core._core import Engine, EventLog

__all__ = ["LogState", "MessageLog"]


class LogState(NamedTuple):
    """State of a log and its changes since the previous query.

    Attributes:
        begun: Files that were started, in order.
        ended: Files that are complete, with the number of bytes written to each.
        used: Number of bytes used in the current file; 0 if there is none.
        dropped: Number of messages that were lost because there was no file for too long.
        wants_file: Whether another file should be added, for waiting or future messages.
    """

    begun: list[Path]
    ended: list[tuple[Path, int]]
    used: int
    dropped: int
    wants_file: bool


class MessageLog:
    """Writes all messages of this process to files, which the caller adds to the log.

    In a program that has not used Mesh yet, the constructor starts Mesh. The log continues when the
    program starts another job.

    Args:
        waiting_max: Maximum number of messages that wait while all files are full; beyond that, the
            oldest are dropped and counted.
        since_start: Whether to begin with the first messages of this process. This requires that
            this process had no subscriber before, and that messages were recorded in the process
            that spawned it.

    Attributes:
        HEADER: The header of a file: a marker that the owner of the log chooses, the offset to add
            to the times of records, the number of records, the number of numbered endpoints, and
            the number of waiting records.
        RECORD: The record of a message; see docs/protocol/events.md.
        KINDS: The kinds of message events, by their number in a record; 0 is not used.
        State: The type of the state of a log.

    Raises:
        ValueError: `waiting_max` is less than 1.
    """

    HEADER: ClassVar[Struct] = Struct("<8sqQQQ24x")
    RECORD: ClassVar[Struct] = MESSAGE_RECORD
    KINDS: ClassVar[tuple[str, ...]] = MESSAGE_KINDS
    State: TypeAlias = LogState

    def __init__(self, waiting_max: int, *, since_start: bool = False) -> None:
        if waiting_max < 1:
            raise ValueError(f"waiting_max {waiting_max} is less than 1: keep at least one message")
        self._waiting_max = waiting_max
        self._since_start = since_start
        self._native: EventLog | None = None
        self._begun: list[Path] = []
        self._ended: list[tuple[Path, int]] = []
        self._dropped = 0
        recorder.add_log(self)

    @property
    def time_base_ns(self) -> int:
        """The offset to add to the time of a record to get nanoseconds since the epoch."""
        return recorder.time_base_ns

    def endpoint_names(self) -> tuple[str, ...]:
        """Return the names of endpoints by their numbers, as of the last call of `state`."""
        return recorder.endpoint_names

    def extend(self, file: int, length: int, coming: Path, prefix: str, suffix: str) -> None:
        """Add a file for future messages.

        Args:
            file: Its descriptor, which the caller may close afterwards.
            length: Its length in bytes, including the header. All of its pages must be allocated:
                if the disk is full, writing to an unallocated page would kill the process.
            coming: Its path until the first message is written to it.
            prefix: The prefix of its path from then on; it is followed by the time of the first
                message, in microseconds since the epoch.
            suffix: The suffix of its path from then on.

        Raises:
            OSError: The file cannot be mapped, or is too short for a message.
        """
        with recorder.changed:
            if self._native is not None:
                base_ns = recorder.time_base_ns
                self._native.add_file(file, length, str(coming), prefix, suffix, base_ns)

    def turn(self) -> None:
        """End the current file: the next message starts another one."""
        with recorder.changed:
            if self._native is not None:
                self._native.rotate()

    def state(self) -> LogState:
        """Return the state of the log and the changes since the previous call."""
        with recorder.changed:
            used, wants_file = self._look()
            begun, self._begun = self._begun, []
            ended, self._ended = self._ended, []
            dropped, self._dropped = self._dropped, 0
        return LogState(begun, ended, used, dropped, wants_file)

    def close(self) -> LogState:
        """End the log and return its final state; files that were not started remain unused."""
        recorder.remove_log(self)
        return self.state()

    # The caller of the following methods holds the lock of the recorder.

    def _turn_to(self, engine: Engine | None) -> None:
        """Continue with the messages of an engine."""
        if self._native is not None:
            self._native.rotate()
            self._look()
            self._native.close()
        self._native = None
        if engine is not None:
            self._native = engine.open_log(self._waiting_max, self._since_start)

    def _look(self) -> tuple[int, bool]:
        if self._native is None:
            return 0, False
        begun, ended, ready, used, capacity, waiting, dropped, names = self._native.state(
            len(recorder.endpoint_names) - 1
        )
        recorder.endpoint_names += tuple(name.decode(errors="replace") for name in names)
        self._begun += begun
        self._ended += ended
        self._dropped += dropped
        # Request the next file when the current one is half full, so that it is ready in time.
        return used, bool(waiting) or (not ready and used * 2 >= capacity)
