"""The latest collectives of a process, in a file that others can read while the process hangs.

The process writes to mapped memory only, so a stopped or killed process has the same file as a
running one. The file has a header and a ring of records of equal size; the groups that the records
refer to are in a second file, one JSON object per line.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from mesh_telemetry._collectives.mapped_file import mapped_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Collective",
    "CollectivesFile",
    "ProcessGroup",
    "Progress",
    "read_collectives",
    "read_groups",
    "read_progress",
]

_FILE_NAME = "collectives"
_GROUPS_FILE_NAME = "process_groups"
_MAGIC = b"meshcol1"
# Magic, number of records that were begun, entry time of the oldest record that has not ended.
_HEADER = Struct("<8sQq")
_HEADER_LEN = 64
# Serial, group, peer, sequence, entered, left, bytes, line, flags, thread, operation, shape, file,
# function.
_RECORD = Struct("<QIiQqqQIIQ24s72s160s64s")
_RECORD_LEN = 384
_COUNT = 256
_SERIAL, _FLAGS_AT, _LEFT_AT = Struct("<Q"), 52, 32
_LEFT, _FLAGS = Struct("<q"), Struct("<I")
_ASYNC, _FAILED = 1, 2


class ProcessGroup(NamedTuple):
    """A process group of `torch.distributed`, from the point of view of one member."""

    number: int
    """Its number in this process."""
    name: str
    """Its name, which all members use."""
    world: str
    """The address of the store of its world: worlds on the same hosts differ in it."""
    ranks: tuple[int, ...]
    """The ranks of its members in the world, in the order of their ranks in the group."""
    rank: int
    """The rank of this process in the group."""
    backend: str


class Collective(NamedTuple):
    """An operation of a process group in one process."""

    serial: int
    """The number of earlier operations of the process."""
    group: int
    """The `ProcessGroup.number`."""
    peer: int
    """The root or peer as a rank of the group; -1 if there is none."""
    sequence: int
    """The number of earlier operations of the group; for `send` and `recv`, with the same peer."""
    entered_ns: int
    """When the process called it, in nanoseconds since the epoch."""
    left_ns: int
    """When it ended, or when its end was detected, at most 0.1 s later; 0 while it runs."""
    nbytes: int
    line: int
    is_async: bool
    is_failed: bool
    thread: int
    """The Python id of the thread that called it."""
    operation: str
    """Its name, such as `all_reduce`."""
    shape: str
    """The type and shape of the first tensor, such as `float32[4, 8]`."""
    file: str
    """The source file of the caller: the innermost frame outside of PyTorch."""
    function: str

    @property
    def is_peer_to_peer(self) -> bool:
        """Whether only two ranks take part."""
        return self.operation in ("send", "recv")


class CollectivesFile:
    """Writer of the file.

    Args:
        folder: The folder of the process.
    """

    def __init__(self, folder: Path) -> None:
        self._groups_path = folder / _GROUPS_FILE_NAME
        length = _HEADER_LEN + _COUNT * _RECORD_LEN
        self._memory = mapped_file(folder / _FILE_NAME, length)
        self._lock = threading.Lock()
        self._serial = 0
        # Entry times of operations that have not ended, oldest first.
        self._running: dict[int, int] = {}
        # The total time with an operation in progress, and the start of the current such period.
        self._busy_ns = self._busy_since_ns = 0
        # The operation that each thread waits for, which ends before the thread calls another one.
        self._waited: dict[int, int] = {}
        self._write_header()

    def add_group(self, group: ProcessGroup) -> None:
        """Write a group before its first operation."""
        with open(self._groups_path, "a") as file:
            file.write(json.dumps(group) + "\n")

    def enter(
        self,
        group: int,
        operation: str,
        peer: int,
        sequence: int,
        nbytes: int,
        shape: str,
        caller: tuple[str, str, int],
        *,
        is_async: bool,
        is_waited: bool = False,
    ) -> int:
        """Write an operation that begins; return its serial number.

        Args:
            group: The number of the group.
            operation: Its name.
            peer: The root or peer as a rank of the group; -1 if there is none.
            sequence: The number of earlier operations of the group.
            nbytes: The size of its tensors.
            shape: Type and shape of the first tensor.
            caller: File, function and line of the caller.
            is_async: Whether the caller waits for it later.
            is_waited: Whether this thread calls no other operation before it has ended.
        """
        file, function, line = caller
        now_ns, thread = time.time_ns(), threading.get_ident()
        with self._lock:
            previous = self._waited.pop(thread, None)
            if previous is not None:
                self._leave(previous, now_ns, is_failed=False)
            serial = self._serial
            self._serial = serial + 1
            at = _HEADER_LEN + serial % _COUNT * _RECORD_LEN
            _RECORD.pack_into(
                self._memory,
                at,
                serial + 1,
                group,
                peer,
                sequence,
                now_ns,
                0,
                nbytes,
                line,
                _ASYNC if is_async else 0,
                thread,
                operation.encode()[:24],
                shape.encode()[:72],
                # The end of a path is kept, because it is more specific than the beginning.
                file.encode()[-160:],
                function.encode()[:64],
            )
            if not self._running:
                self._busy_since_ns = now_ns
            self._running[serial] = now_ns
            if is_waited:
                self._waited[thread] = serial
            self._write_header()
        return serial

    def returned(self, *, is_failed: bool) -> None:
        """Write the end of the operation that this thread has waited for, if there is one."""
        serial = self._waited.pop(threading.get_ident(), None)
        if serial is not None:
            self.leave(serial, is_failed=is_failed)

    def leave(self, serial: int, *, is_failed: bool = False) -> None:
        """Write that an operation has ended; only the first call for an operation counts."""
        with self._lock:
            self._leave(serial, time.time_ns(), is_failed=is_failed)
            self._write_header()

    def busy_ns(self) -> int:
        """Return for how long at least one operation was in progress, in nanoseconds."""
        with self._lock:
            now_ns = time.time_ns() if self._running else self._busy_since_ns
            return self._busy_ns + now_ns - self._busy_since_ns

    def _leave(self, serial: int, now_ns: int, *, is_failed: bool) -> None:
        if self._running.pop(serial, None) is None:
            return
        if not self._running:
            self._busy_ns += now_ns - self._busy_since_ns
            self._busy_since_ns = now_ns
        if self._serial - serial > _COUNT:
            return
        at = _HEADER_LEN + serial % _COUNT * _RECORD_LEN
        if is_failed:
            flags: int = _FLAGS.unpack_from(self._memory, at + _FLAGS_AT)[0]
            _FLAGS.pack_into(self._memory, at + _FLAGS_AT, flags | _FAILED)
        _LEFT.pack_into(self._memory, at + _LEFT_AT, now_ns)

    def _write_header(self) -> None:
        oldest = next(iter(self._running.values()), 0)
        _HEADER.pack_into(self._memory, 0, _MAGIC, self._serial, oldest)


class Progress(NamedTuple):
    """The header of the file."""

    begun_count: int
    """The number of operations that were begun."""
    running_since_ns: int
    """When the oldest operation that has not ended was begun; 0 if all have ended."""


def read_progress(folder: str) -> Progress | None:
    """Read the progress of a process; None if it has used no process group."""
    with suppress(OSError):
        file = os.open(f"{folder}/{_FILE_NAME}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(file, _HEADER.size)
        finally:
            os.close(file)
        if len(content) == _HEADER.size:
            magic, count, oldest = _HEADER.unpack(content)
            if magic == _MAGIC:
                return Progress(count, oldest)
    return None


def read_groups(folder: str) -> list[ProcessGroup]:
    """Read the process groups of a process, in the order of their creation."""
    groups = []
    with (
        suppress(OSError, ValueError, TypeError),
        open(f"{folder}/{_GROUPS_FILE_NAME}") as file,
    ):
        for line in file:
            number, name, world, ranks, rank, backend = json.loads(line)
            groups.append(ProcessGroup(number, name, world, tuple(ranks), rank, backend))
    return groups


def read_collectives(folder: str) -> list[Collective]:
    """Read the latest operations of a process, oldest first."""
    try:
        with open(f"{folder}/{_FILE_NAME}", "rb") as file:
            content = file.read()
    except OSError:
        return []
    found = []
    for at in range(_HEADER_LEN, len(content) - _RECORD_LEN + 1, _RECORD_LEN):
        serial, group, peer, sequence, entered, left, nbytes, line, flags, thread, *texts = (
            _RECORD.unpack_from(content, at)
        )
        if not serial:
            continue
        operation, shape, source, function = (
            text.rstrip(b"\0").decode(errors="replace") for text in texts
        )
        found.append(
            Collective(
                serial - 1,
                group,
                peer,
                sequence,
                entered,
                left,
                nbytes,
                line,
                bool(flags & _ASYNC),
                bool(flags & _FAILED),
                thread,
                operation,
                shape,
                source,
                function,
            )
        )
    return sorted(found)
