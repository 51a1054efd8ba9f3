"""The folder of a host in which dumps of stacks lie: a file for each process of a dump.

A file is complete when it is there under its name, which begins with the time of the dump.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from mesh_telemetry._errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["STACK_FOLDER", "StackFile", "StackFolder", "stack_files"]

#: The name of the folder, beside those of processes.
STACK_FOLDER = "stacks"

_COMPLETE, _COMING = ".arrow", ".coming"
_CLOSE_S = 5.0
_PAUSE_S = 0.05


class StackFile(NamedTuple):
    """The dump of one process."""

    timestamp_us: int
    path: str


def stack_files(folder: Path) -> list[StackFile]:
    """Gives what lies in a folder, oldest first; nothing where there is no such folder."""
    found = []
    with suppress(OSError):
        for name in os.listdir(folder):
            time_us, _, _ = name.partition("-")
            if name.endswith(_COMPLETE) and time_us.isdecimal():
                found.append(StackFile(int(time_us), f"{folder}/{name}"))
    return sorted(found)


class StackFolder:
    """Writes dumps, and removes what is too old or too much; at one time one for each folder.

    Args:
        path: The folder.
        bytes_max: So much may lie there.
        retention_s: For so long, in seconds.
    """

    def __init__(self, path: Path, *, bytes_max: int, retention_s: float) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._retention_s = retention_s
        self._turn = threading.Lock()
        self._is_closed = threading.Event()
        self._sweeper: threading.Thread | None = None
        with suppress(OSError):
            # Of one that was killed while it wrote.
            for left in path.glob(f"*{_COMING}"):
                left.unlink()
        with self._turn:
            self._sweep_on()

    def add(self, timestamp_us: int, size: int, write: Callable[[Path], None]) -> None:
        """Adds a file; the oldest go for it.

        Args:
            timestamp_us: The time of the dump, in microseconds since the epoch.
            size: How many bytes it will have at most.
            write: Writes it to the path that it is given.

        Raises:
            StorageError: It is more than there is room for, or the disk is full.
        """
        if size > self._bytes_max:
            raise StorageError(
                f"the dump takes {size} bytes, and all dumps of a host may take {self._bytes_max}: "
                "raise stacks_bytes in TelemetryConfig, or dump without local variables"
            )
        name = f"{timestamp_us}-{os.urandom(8).hex()}"
        with self._turn:
            if self._is_closed.is_set():
                raise StorageError("telemetry has been closed: start it to store dumps")
            coming = self._path / (name + _COMING)
            try:
                self._path.mkdir(mode=0o700, exist_ok=True)
                self._make_room(size)
                write(coming)
                coming.rename(self._path / (name + _COMPLETE))
            except OSError as error:
                coming.unlink(missing_ok=True)
                raise StorageError(
                    f"{str(coming)!r} cannot be written ({error.strerror}): make room there"
                ) from error
            self._sweep_on()

    def coming(self) -> Path:
        """Gives where something may be written meanwhile; who writes it removes it.

        Raises:
            StorageError: The folder cannot be made.
        """
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{str(self._path)!r} cannot be made: {error.strerror}") from error
        return self._path / (os.urandom(8).hex() + _COMING)

    def close(self) -> None:
        """Takes no more dumps. What lies there goes with the folder of the host."""
        self._is_closed.set()
        sweeper = self._sweeper
        if sweeper is not None:
            sweeper.join(_CLOSE_S)

    def _make_room(self, size: int) -> None:
        files = stack_files(self._path)
        sizes = [_size(file.path) for file in files]
        taken = sum(sizes)
        for file, file_size in zip(files, sizes, strict=True):
            if taken + size <= self._bytes_max:
                return
            _remove(file.path)
            taken -= file_size

    def _sweep_on(self) -> None:
        """Has somebody remove what gets too old, as long as there is anything."""
        if self._sweeper is None and stack_files(self._path):
            self._sweeper = threading.Thread(
                target=self._sweep, name="mesh-telemetry-stacks", daemon=True
            )
            self._sweeper.start()

    def _sweep(self) -> None:
        while True:
            with self._turn:
                left = self._drop_old()
                if left is None or self._is_closed.is_set():
                    self._sweeper = None
                    return
            # A clock that is set back makes it later, but not for ever.
            self._is_closed.wait(min(max(left, _PAUSE_S), self._retention_s))

    def _drop_old(self) -> float | None:
        """Removes what is too old; gives how long the oldest that is left may stay, in seconds."""
        now_us = time.time_ns() // 1000
        for file in stack_files(self._path):
            left_s = self._retention_s - (now_us - file.timestamp_us) / 1e6
            if left_s > 0:
                return left_s
            _remove(file.path)
        return None


def _size(path: str) -> int:
    # One that has gone takes no room.
    with suppress(OSError):
        return os.stat(path).st_size
    return 0


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
