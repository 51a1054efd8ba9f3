"""The directory where the processes of a host find each other.

It is made when the first of them is about to start, with the warden that removes it: a program that
is killed before has left nothing behind. When the warden is killed together with the program, the
next program of the user removes the directory. The processes of a job share a lock on it, which the
kernel releases with the last of them: a directory without a lock has no living process.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["JobDir", "hold", "remove_left"]


_PREFIX = "mesh-"
# Only directories whose processes lock them have it.
_SUFFIX = ".job"
# What the kernel takes as the path of a socket, without what a process adds to the directory's.
_PATH_LEN_MAX = 107 - len("/4294967295.sock")
# Where a folder for temporary files has a path that is too long, as in deep trees of test runs.
_SHORT = Path("/tmp")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# How often a directory is made that another program removes before it is locked.
_TRIES_MAX = 100


class JobDir:
    """A directory that only its user can enter, once it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._held: int | None = None
        self._is_made = False

    @staticmethod
    def new_path() -> Path:
        """Gives the path of a directory that is not there yet."""
        name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}"
        path = Path(tempfile.gettempdir()) / name
        return path if len(os.fsencode(path)) <= _PATH_LEN_MAX else _SHORT / name

    def make(self, then: Callable[[], None]) -> None:
        """Makes the directory and does what needs it, once.

        Directories of this user's programs that were killed with all their processes are removed.

        Raises:
            OSError: It cannot be made, or somebody else has.
        """
        with self._lock:
            if self._is_made:
                return
            remove_left(self._path.parent)
            self._held = _make_held(self._path)
            self._is_made = True
            then()

    def close(self) -> None:
        """Releases this process's lock; the directory has been removed before."""
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                os.close(held)


def hold(path: str | Path) -> int:
    """Shares the lock of a directory.

    Returns:
        A descriptor. The lock is released when this process and its forks have closed it.

    Raises:
        OSError: There is no such directory.
    """
    directory = os.open(path, _OPEN)
    try:
        # Not every network file system has locks; then nothing removes the directory either. This
        # waits only for a program that removes the directory.
        with suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(directory), os.stat(path)):
            raise FileNotFoundError(f"{str(path)!r} was replaced")
    except BaseException:
        os.close(directory)
        raise
    return directory


def remove_left(folder: Path) -> None:
    """Removes the directories in a folder that this user's killed programs have left.

    Args:
        folder: A folder for temporary files. Those of other users and of living programs stay.
    """
    names = []
    with suppress(OSError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if _is_ours(entry.name)]
    for name in names:
        with suppress(OSError):
            _remove_if_free(folder / name)


def _is_ours(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def _remove_if_free(path: Path) -> None:
    directory = os.open(path, _OPEN)
    try:
        if os.fstat(directory).st_uid == os.geteuid():
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(directory)


def _make_held(path: Path) -> int:
    """Makes a directory and locks it.

    Raises:
        OSError: It cannot be made.
    """
    for _ in range(_TRIES_MAX):
        os.mkdir(path, 0o700)
        # Another program may have seen it before it was locked.
        with suppress(FileNotFoundError):
            return hold(path)
    raise FileNotFoundError(f"{str(path)!r} was removed {_TRIES_MAX} times")
