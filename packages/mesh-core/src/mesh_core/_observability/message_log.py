"""The messages of this process in files, which the core writes as they happen.

Who reads them is another process, which need not be asked for anything here, and finds them also
when this one was killed. docs/protocol/events.md says what is in a file.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from mesh_core._observability.events import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from mesh_core._core import Engine, EventLog

__all__ = ["LOG_HEADER", "LogState", "MessageLog", "log_messages"]

#: What the file of a log begins with: a mark of who keeps it, what to add to the times of its
#: records, how many records there are, how many endpoints have numbers, and how many records wait.
LOG_HEADER = Struct("<8sqQQQ24x")


class LogState(NamedTuple):
    """What has become of a log since its state was last asked for.

    Attributes:
        begun: Files that were begun, in this order.
        ended: Files that nothing more comes into, and how much of each was written, in bytes.
        used: Bytes of the file that is written to; 0 for none.
        dropped: How many messages were lost, because there was no file for too long.
        wants_file: Whether another file is to be added, for what comes next or waits already.
    """

    begun: list[Path]
    ended: list[tuple[Path, int]]
    used: int
    dropped: int
    wants_file: bool


class MessageLog:
    """A log of all messages of this process. It goes on when a program ends its job for another.

    Args:
        waiting_max: How many messages may wait for a file.
        since_start: As for `subscribe`.
    """

    def __init__(self, waiting_max: int, *, since_start: bool) -> None:
        self._waiting_max = waiting_max
        self._since_start = since_start
        self._native: EventLog | None = None
        self._begun: list[Path] = []
        self._ended: list[tuple[Path, int]] = []
        self._dropped = 0
        recorder.add_log(self)

    @property
    def time_base_ns(self) -> int:
        """What to add to the time of a record to get nanoseconds since the epoch."""
        return recorder.time_base_ns

    def endpoint_names(self) -> tuple[str, ...]:
        """Gives the names of endpoints by their numbers, as of the last `state`."""
        return recorder.endpoint_names

    def extend(self, file: int, length: int, coming: Path, prefix: str, suffix: str) -> None:
        """Adds a file for messages to come.

        Args:
            file: Its descriptor, which may be closed afterwards.
            length: How long it is, with its header. All of it must have pages: where the disk is
                full, writing to one that is missing would end the process.
            coming: Its path, until it has a message.
            prefix: What its path begins with from then on; the time of its first message follows,
                in microseconds since the epoch.
            suffix: What its path ends with.

        Raises:
            OSError: It cannot be mapped, or is too short for a message.
        """
        with recorder.changed:
            if self._native is not None:
                base_ns = recorder.time_base_ns
                self._native.extend(file, length, str(coming), prefix, suffix, base_ns)

    def turn(self) -> None:
        """Ends the file that is written to: the next message begins another one."""
        with recorder.changed:
            if self._native is not None:
                self._native.turn()

    def state(self) -> LogState:
        """Says what has become of it since this was last called."""
        with recorder.changed:
            used, wants_file = self._look()
            begun, self._begun = self._begun, []
            ended, self._ended = self._ended, []
            dropped, self._dropped = self._dropped, 0
        return LogState(begun, ended, used, dropped, wants_file)

    def close(self) -> LogState:
        """Ends it, and says what has become of it; files that were not begun never are."""
        recorder.remove_log(self)
        return self.state()

    # With the lock of the recorder held.

    def _turn_to(self, engine: Engine | None) -> None:
        """Goes on with the messages of an engine."""
        if self._native is not None:
            self._native.turn()
            self._look()
            self._native.close()
        self._native = None
        if engine is not None:
            self._native = engine.open_log(self._waiting_max, self._since_start)

    def _look(self) -> tuple[int, bool]:
        if self._native is None:
            return 0, False
        begun, ended, ready, used, room, waiting, dropped, names = self._native.state(
            len(recorder.endpoint_names) - 1
        )
        recorder.endpoint_names += tuple(name.decode(errors="replace") for name in names)
        self._begun += begun
        self._ended += ended
        self._dropped += dropped
        # A file that is half full is not full before somebody looks again, or little waits.
        return used, bool(waiting) or (not ready and used * 2 >= room)


def log_messages(waiting_max: int, *, since_start: bool = False) -> MessageLog:
    """Begins to write all messages of this process into files, which are handed to the log.

    In a program that has not used Mesh yet this starts it.

    Args:
        waiting_max: How many messages may wait while there is no file with room; then the oldest
            are dropped and counted.
        since_start: Begin with the first messages of this process, if nobody has subscribed here
            before, and messages were recorded where it was spawned.

    Raises:
        ValueError: `waiting_max` is less than 1.
    """
    if waiting_max < 1:
        raise ValueError(f"waiting_max {waiting_max} is less than 1: keep one message at least")
    return MessageLog(waiting_max, since_start=since_start)
