"""The folders in which the processes of a host keep their events.

`<directory>/mesh-telemetry-<user>-<run>/<host>/<process>/`: a run is one `Telemetry`, a process one
incarnation. The directory may be one that all users write to. The name of a run is random, so that
no other user can take it first; what other users put there under such a name is never used. Each
process holds a lock in its own folder, and a share of one in that of its host, so
that what the dead have left is told from what is in use.
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
from mesh_telemetry._events.moving import note_spill, rescue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ASKED",
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

#: In the folder of a host: what it has there for questions that are being answered.
ASKED = "asked"
_LOCK = "lock"
_SHARED_MEMORY = "/dev/shm"
# A folder without a lock is being made, unless it is older than this.
_NEW_S = 60.0
_TRIES_MAX = 100
_PAUSE_S = 0.002


class Lock:
    """A lock on a folder; held until it is closed or the process ends."""

    def __init__(self, folder: Path, *, is_shared: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd: int = os.open(folder / _LOCK, flags, 0o600)
        how = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            _take(self._fd, how, tries=1 if is_shared else _TRIES_MAX)
        except OSError:
            self.close()
            raise

    def is_of(self, folder: Path) -> bool:
        """Says whether the folder is still there, and not another one in its place."""
        try:
            there = os.stat(folder / _LOCK)
        except OSError:
            return False
        mine = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Lets go of it; also in a fork, which does not take it from its parent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def spill_folder(spill: str | None, run: str, host: int) -> Path | None:
    """Gives where what has no room in the folder of a host is kept, if it is."""
    return None if spill is None else Path(spill) / run / str(host)


def open_host_folder(
    directory: str | None, run: str, host: int, spill: Path | None = None
) -> tuple[Path, Lock]:
    """Makes the folder of a host and shares its lock.

    Args:
        directory: Below which folder.
        run: The name of the run.
        host: The number of the host.
        spill: Where what is left there is to go, whoever removes it.

    Raises:
        StorageError: It cannot be made, or belongs to somebody else.
    """
    folder = Path(directory or _default_directory())
    try:
        for _ in range(_TRIES_MAX):
            # Whoever removes what is left may be ahead of us at any step.
            with suppress(FileNotFoundError, BlockingIOError):
                folder = _made_run_folder(directory, run) / str(host)
                folder.mkdir(mode=0o700, exist_ok=True)
                lock = Lock(folder, is_shared=True)
                if lock.is_of(folder):
                    if spill is not None:
                        note_spill(folder, spill)
                    return folder, lock
                lock.close()
            time.sleep(_PAUSE_S)
    except OSError as error:
        raise StorageError(
            f"{str(folder)!r} cannot be made ({error.strerror}): "
            "name another directory in TelemetryConfig"
        ) from error
    raise StorageError(f"{str(folder)!r} is removed again and again: name another directory")


def is_locked(folder: str | Path) -> bool:
    """Says whether somebody who lives holds the lock of a folder, or is about to."""
    try:
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
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
    """Removes what programs have left that were killed with all of their processes.

    What they were to keep is moved to where they were to keep it.
    """
    with suppress(OSError):
        for run in _subfolders(Path(directory or _default_directory())):
            if run.name.startswith(_run_prefix()) and is_private(run):
                for host in _subfolders(run):
                    remove_if_free(host)
                # A program may have been killed before it had a host in it.
                with suppress(OSError):
                    run.rmdir()


def remove_if_free(folder: Path) -> bool:
    """Removes a folder unless somebody shares its lock; says whether it is gone.

    What is to be kept of it is moved first; where that cannot be, it stays.
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
        if not rescue(folder):
            return False
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.close()
    with suppress(OSError):
        folder.parent.rmdir()
    return not folder.exists()


def bytes_below(folder: Path) -> int:
    """Counts the bytes of the files in a folder."""
    total = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def _take(fd: int, how: int, tries: int) -> None:
    """Takes a lock that nobody is to have, but who looks for a moment whether somebody has it.

    Raises:
        BlockingIOError: Somebody has it.
    """
    for left in reversed(range(tries)):
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
        time.sleep(_PAUSE_S)


def _made_run_folder(directory: str | None, run: str) -> Path:
    """Return the folder of a run on this host, made for this user alone.

    Its name has half of the run's. Another user who has read it on another host, and takes it on
    this one, does not know the rest.

    Raises:
        StorageError: Another user has taken both names.
    """
    parent = Path(directory or _default_directory())
    whole = parent / f"{_run_prefix()}{run}"
    if not is_private(whole):
        with suppress(StorageError):
            half = parent / f"{_run_prefix()}{run[: len(run) // 2]}"
            make_private(half, "")
            return half
    make_private(whole, "name another directory in TelemetryConfig")
    return whole


def _run_prefix() -> str:
    return f"mesh-telemetry-{os.geteuid()}-"


def _default_directory() -> str:
    has_memory = os.access(_SHARED_MEMORY, os.W_OK | os.X_OK)
    return _SHARED_MEMORY if has_memory else tempfile.gettempdir()


def make_private(folder: Path, otherwise: str) -> None:
    """Makes a folder that nobody else can look into, or sees that it is one.

    Args:
        folder: Which.
        otherwise: What to do instead of removing it where it is not.

    Raises:
        StorageError: Others can enter it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        raise StorageError(
            f"{str(folder)!r} is not a folder that this user alone can enter: remove it, "
            f"or {otherwise}"
        )


def is_private(folder: Path) -> bool:
    """Return whether there is a folder that this user owns and no other can enter; no link."""
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
