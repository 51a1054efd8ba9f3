"""Copies of other hosts in the folder of this host."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

from mesh_telemetry._events.folders import LOCK_FILE, bytes_below
from mesh_telemetry._events.proc_folder import proc_folders
from mesh_telemetry._events.segments import SEGMENT_SUFFIX
from mesh_telemetry._replicas.folder_changes import WINDOW_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mesh_telemetry._events.proc_folder import ProcFolder
    from mesh_telemetry._replicas.folder_changes import Change

__all__ = ["Replica", "adopted_folders", "is_copy"]

_REPLICAS = "replicas"
_ADOPTED = "adopted"
_STATE = "lifecycle."


class _File(NamedTuple):
    """A segment of a copy."""

    is_state: bool
    written_s: float
    size: int
    path: str


class Replica:
    """The copy of another host.

    Args:
        host_folder: The folder of this host.
        host: The number of the other host.
        bytes_max: Limit for the segments of the copy, in bytes; the oldest are removed first.
    """

    def __init__(self, host_folder: Path, host: int, bytes_max: int) -> None:
        self._folder = host_folder / _REPLICAS / str(host)
        self._bytes_max = bytes_max

    def apply(self, changes: Iterable[Change]) -> None:
        """Write changes, and remove segments that are too old or exceed the limit.

        Raises:
            OSError: They cannot be written, for example because the disk is full.
            ValueError: A name is not a file name.
        """
        for change in changes:
            folder = self._folder / _checked(change.proc)
            if not folder.exists():
                folder.mkdir(mode=0o700, parents=True)
                # A folder without the file counts as one that is being created.
                (folder / LOCK_FILE).touch(mode=0o600)
            path = folder / _checked(change.file)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, change.content, change.offset)
            finally:
                os.close(file)
        self._trim()

    def set_adopted(self, *, is_adopted: bool) -> None:
        """Set whether queries of this host include the rows of the other one, which was lost."""
        with suppress(OSError):
            if is_adopted:
                (self._folder / _ADOPTED).touch(mode=0o600)
            else:
                (self._folder / _ADOPTED).unlink(missing_ok=True)

    def size_bytes(self) -> int:
        """Return the size of the copy, in bytes."""
        with suppress(OSError):
            return sum(bytes_below(each) for each in self._folder.iterdir() if each.is_dir())
        return 0

    def _trim(self) -> None:
        files = sorted(self._segments())
        total = sum(one.size for one in files)
        oldest_s = time.time() - WINDOW_S
        for one in files:
            is_old = not one.is_state and one.written_s < oldest_s
            if is_old or total > self._bytes_max:
                with suppress(OSError):
                    os.unlink(one.path)
                    total -= one.size

    def _segments(self) -> Iterable[_File]:
        with suppress(OSError):
            for folder in os.scandir(self._folder):
                for file in os.scandir(folder.path) if folder.is_dir() else ():
                    if file.name.endswith(SEGMENT_SUFFIX):
                        about = file.stat()
                        is_state = file.name.startswith(_STATE)
                        yield _File(is_state, about.st_mtime, about.st_size, file.path)


def _checked(name: str) -> str:
    """Return a name that another host has sent, if it cannot lead to another folder."""
    if os.path.basename(name) != name or not name.strip("."):
        raise ValueError(f"invalid name {name!r}: a host may send names of files only")
    return name


def adopted_folders(host_folder: Path) -> list[ProcFolder]:
    """Return the copied folders of the processes of lost hosts.

    Args:
        host_folder: The folder of this host.
    """
    found: list[ProcFolder] = []
    with suppress(OSError):
        for name in sorted(os.listdir(host_folder / _REPLICAS)):
            folder = host_folder / _REPLICAS / name
            if (folder / _ADOPTED).exists():
                found += proc_folders(folder, None)
    return found


def is_copy(folder: ProcFolder) -> bool:
    """Return whether the folder of a process was copied from another host."""
    return folder.path.parent.parent.name == _REPLICAS
