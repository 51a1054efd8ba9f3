"""Folders in which the processes of a host store their events.

The path is `<directory>/mesh-telemetry-<user>-<run>/<host>/<process>/`. A run is one `Telemetry`, a
process is one incarnation. The directory may be writable by all users. The name of a run is random,
so that another user cannot create it first, and a folder that another user created under such a
name is never used. Each process holds an exclusive lock on its own folder and a shared lock on the
folder of its host, which distinguishes folders in use from folders that dead processes left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mesh_telemetry._errors import StorageError
from mesh_telemetry._events.segment_export import move_remaining, write_spill_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

__all__ = [
    "LOCK_FILE",
    "SCRATCH_FOLDER",
    "Lock",
    "bytes_below",
    "is_locked",
    "is_private",
    "make_private",
    "open_host_folder",
    "remove_if_free",
    "spill_folder",
    "sweep",
]

#: Subfolder of a host's folder with the files of queries that are being run.
SCRATCH_FOLDER = "queries"
#: The file in each folder that its process locks.
LOCK_FILE = "lock"
_NEW_LOCK_FILE = "lock.new"
_SHARED_MEMORY = "/dev/shm"
# A folder without a lock is still being created unless it is older than this.
_NEW_S = 60.0
_TRIES_MAX = 100
_PAUSE_S = 0.002


class Lock:
    """A lock on a folder, held until it is closed or the process exits."""

    def __init__(self, folder: Path, *, is_shared: bool, file: str = LOCK_FILE) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd: int = os.open(folder / file, flags, 0o600)
        how = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            _flock(self._fd, how, tries=1 if is_shared else _TRIES_MAX)
        except OSError:
            self.close()
            raise

    @classmethod
    def of_new(cls, folder: Path) -> Self:
        """Lock a folder that this process has just created.

        The lock file gets its name when it is locked, so that no other process takes the folder
        for the remains of a dead one in between.
        """
        lock = cls(folder, is_shared=False, file=_NEW_LOCK_FILE)
        os.rename(folder / _NEW_LOCK_FILE, folder / LOCK_FILE)
        return lock

    def is_of(self, folder: Path) -> bool:
        """Return whether the locked folder still exists and has not been replaced by another."""
        try:
            there = os.stat(folder / LOCK_FILE)
        except OSError:
            return False
        mine = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Release the lock; in a forked process, the parent keeps its lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def spill_folder(spill: str | None, run: str, host: int) -> Path | None:
    """Return the folder for segments that a host evicts, or None if they are discarded."""
    return None if spill is None else Path(spill) / run / str(host)


def open_host_folder(
    directory: str | None, run: str, host: int, spill: Path | None = None
) -> tuple[Path, Lock]:
    """Create the folder of a host and acquire a shared lock on it.

    Args:
        directory: The parent folder.
        run: The name of the run.
        host: The number of the host.
        spill: The folder to which remaining segments are moved when the host folder is removed.

    Raises:
        StorageError: The folder cannot be created, or belongs to another user.
    """
    folder = Path(directory or _default_directory())
    try:
        for _ in range(_TRIES_MAX):
            # Another process that removes remains may delete the folder between any two steps.
            with suppress(FileNotFoundError, BlockingIOError):
                folder = _run_folder(directory, run) / str(host)
                folder.mkdir(mode=0o700, exist_ok=True)
                lock = Lock(folder, is_shared=True)
                if lock.is_of(folder):
                    if spill is not None:
                        write_spill_path(folder, spill)
                    return folder, lock
                lock.close()
            time.sleep(_PAUSE_S)
    except OSError as error:
        raise StorageError(
            f"cannot create {str(folder)!r} ({error.strerror}): set another directory in "
            "TelemetryConfig"
        ) from error
    raise StorageError(
        f"{str(folder)!r} is repeatedly removed: set another directory in TelemetryConfig"
    )


def is_locked(folder: str | Path) -> bool:
    """Return whether a live process holds the lock of a folder or is about to acquire it."""
    try:
        lock = os.open(os.path.join(folder, LOCK_FILE), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return _is_new(folder)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def sweep(directory: str | None) -> None:
    """Remove the folders of programs that were killed together with all of their processes.

    Segments of runs with a spill folder are moved there first.
    """
    with suppress(OSError):
        for run in _subfolders(Path(directory or _default_directory())):
            if run.name.startswith(_run_prefix()) and is_private(run):
                for host in _subfolders(run):
                    remove_if_free(host)
                # A program may have been killed before it created a host folder.
                with suppress(OSError):
                    run.rmdir()


def remove_if_free(folder: Path) -> bool:
    """Remove a folder unless another process shares its lock.

    Segments that must be kept are moved first. If that fails, the folder remains.

    Returns:
        Whether the folder no longer exists.
    """
    if is_locked(folder):
        return not folder.exists()
    try:
        lock = Lock(folder, is_shared=False)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not move_remaining(folder):
            return False
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.close()
    with suppress(OSError):
        folder.parent.rmdir()
    return not folder.exists()


def bytes_below(folder: Path) -> int:
    """Return the total size of the files directly in a folder, in bytes."""
    total = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def _flock(fd: int, how: int, tries: int) -> None:
    """Acquire a lock that is free except while other processes briefly test it.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    for left in reversed(range(tries)):
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
        time.sleep(_PAUSE_S)


def _run_folder(directory: str | None, run: str) -> Path:
    """Return the folder of a run on this host, created for this user only.

    Its name contains the first half of the run's name. Another user who read it on another host and
    creates it on this one does not know the rest.

    Raises:
        StorageError: Another user has created both names.
    """
    parent = Path(directory or _default_directory())
    whole = parent / f"{_run_prefix()}{run}"
    if not is_private(whole):
        with suppress(StorageError):
            half = parent / f"{_run_prefix()}{run[: len(run) // 2]}"
            make_private(half, "")
            return half
    make_private(whole, "set another directory in TelemetryConfig")
    return whole


def _run_prefix() -> str:
    return f"mesh-telemetry-{os.geteuid()}-"


def _default_directory() -> str:
    has_memory = os.access(_SHARED_MEMORY, os.W_OK | os.X_OK)
    return _SHARED_MEMORY if has_memory else tempfile.gettempdir()


def make_private(folder: Path, otherwise: str) -> None:
    """Create a folder that only this user can enter, or verify that an existing one is private.

    Args:
        folder: The folder.
        otherwise: Text of the error: the alternative to removing the folder if it is not private.

    Raises:
        StorageError: Other users can enter the folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        raise StorageError(
            f"{str(folder)!r} is not a private folder of this user: remove it, or {otherwise}"
        )


def is_private(folder: Path) -> bool:
    """Return whether a path is a folder, not a link, that only this user owns and can enter."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and not found.st_mode & 0o077


def _subfolders(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _is_new(folder: str | Path) -> bool:
    try:
        return time.time() - os.stat(folder).st_mtime < _NEW_S
    except OSError:
        return False
