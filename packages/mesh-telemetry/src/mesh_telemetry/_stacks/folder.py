"""The folder of a host with dumps of stacks: a file for each process of a dump.

A file appears under its name, which begins with the time of the dump, when it is complete.
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

#: The name of the folder, which is a sibling of the folders of processes.
STACK_FOLDER = "stacks"

_COMPLETE, _INCOMPLETE = ".arrow", ".incomplete"
_CLOSE_S = 5.0
_PAUSE_S = 0.05


class StackFile(NamedTuple):
    """The dump of one process."""

    timestamp_us: int
    path: str


def stack_files(folder: Path) -> list[StackFile]:
    """Return the files of a folder, oldest first; none if the folder does not exist."""
    found = []
    with suppress(OSError):
        for name in os.listdir(folder):
            time_us, _, _ = name.partition("-")
            if name.endswith(_COMPLETE) and time_us.isdecimal():
                found.append(StackFile(int(time_us), f"{folder}/{name}"))
    return sorted(found)


class StackFolder:
    """Writes dumps, and removes old ones within limits of age and size.

    At most one instance may exist for a folder at a time.

    Args:
        path: The folder.
        bytes_max: Limit for all files together, in bytes.
        retention_s: The maximum age of a file, in seconds.
    """

    def __init__(self, path: Path, *, bytes_max: int, retention_s: float) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._retention_s = retention_s
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._sweeper: threading.Thread | None = None
        with suppress(OSError):
            # A killed process may have left incomplete files.
            for left in path.glob(f"*{_INCOMPLETE}"):
                left.unlink()
        with self._lock:
            self._ensure_sweeper()

    def add(self, timestamp_us: int, size: int, write: Callable[[Path], None]) -> None:
        """Add a file; the oldest files are deleted to free space.

        Args:
            timestamp_us: The time of the dump, in microseconds since the epoch.
            size: The maximum size of the file, in bytes.
            write: Writes the file to a given path.

        Raises:
            StorageError: The file exceeds the limit, or the disk is full.
        """
        if size > self._bytes_max:
            raise StorageError(
                f"the dump has {size} bytes, and the limit for all dumps of a host is"
                f" {self._bytes_max}: increase stacks_bytes in TelemetryConfig, or dump without "
                "local variables"
            )
        name = f"{timestamp_us}-{os.urandom(8).hex()}"
        with self._lock:
            if self._is_closed.is_set():
                raise StorageError("telemetry has been closed: start it to store dumps")
            temporary_path = self._path / (name + _INCOMPLETE)
            try:
                self._path.mkdir(mode=0o700, exist_ok=True)
                self._evict_for(size)
                write(temporary_path)
                temporary_path.rename(self._path / (name + _COMPLETE))
            except OSError as error:
                temporary_path.unlink(missing_ok=True)
                raise StorageError(
                    f"cannot write {str(temporary_path)!r} ({error.strerror}): free space there"
                ) from error
            self._ensure_sweeper()

    def temporary_path(self) -> Path:
        """Return a path for a temporary file, which the caller removes.

        Raises:
            StorageError: The folder cannot be created.
        """
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot create {str(self._path)!r}: {error.strerror}") from error
        return self._path / (os.urandom(8).hex() + _INCOMPLETE)

    def close(self) -> None:
        """Accept no more dumps. Existing files are removed with the folder of the host."""
        self._is_closed.set()
        sweeper = self._sweeper
        if sweeper is not None:
            sweeper.join(_CLOSE_S)

    def _evict_for(self, size: int) -> None:
        files = stack_files(self._path)
        sizes = [_size(file.path) for file in files]
        taken = sum(sizes)
        for file, file_size in zip(files, sizes, strict=True):
            if taken + size <= self._bytes_max:
                return
            _remove(file.path)
            taken -= file_size

    def _ensure_sweeper(self) -> None:
        """Ensure that a thread removes expired files while there are any."""
        if self._sweeper is None and stack_files(self._path):
            self._sweeper = threading.Thread(
                target=self._sweep, name="mesh-telemetry-stacks", daemon=True
            )
            self._sweeper.start()

    def _sweep(self) -> None:
        while True:
            with self._lock:
                left = self._remove_expired()
                if left is None or self._is_closed.is_set():
                    self._sweeper = None
                    return
            # If the clock was set back, files expire later, but the wait is bounded.
            self._is_closed.wait(min(max(left, _PAUSE_S), self._retention_s))

    def _remove_expired(self) -> float | None:
        """Remove expired files; return the seconds until the next one expires."""
        now_us = time.time_ns() // 1000
        for file in stack_files(self._path):
            left_s = self._retention_s - (now_us - file.timestamp_us) / 1e6
            if left_s > 0:
                return left_s
            _remove(file.path)
        return None


def _size(path: str) -> int:
    # A file that was removed takes no space.
    with suppress(OSError):
        return os.stat(path).st_size
    return 0


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
