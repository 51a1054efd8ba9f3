"""The directory through which the processes of a host find each other.

It is created when the first process is about to start, together with the process supervisor that
removes it. A program that is killed earlier leaves no directory. If the supervisor is killed
together with the program, the next program of the same user removes the directory. The processes of
a job share a lock on it, which the kernel releases with the last of them: a directory without a
lock has no living process.
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
# Only directories that their processes lock have this suffix.
_SUFFIX = ".job"
# The kernel's limit for the path of a socket, minus the name that a process appends to the
# directory.
_PATH_LEN_MAX = 107 - len("/4294967295.sock")
# Used if the folder for temporary files has too long a path, as in deep trees of test runs.
_SHORT = Path("/tmp")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The maximum number of attempts if other programs remove the directory before it is locked.
_TRIES_MAX = 100


class JobDir:
    """A directory that only its user can access, once it is created."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._held: int | None = None
        self._is_made = False

    @staticmethod
    def new_path() -> Path:
        """Return the path of a directory that does not exist yet."""
        name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}"
        path = Path(tempfile.gettempdir()) / name
        return path if len(os.fsencode(path)) <= _PATH_LEN_MAX else _SHORT / name

    def make(self, then: Callable[[], None]) -> None:
        """Create the directory and call `then`, once.

        Directories of the same user's programs that were killed with all their processes are
        removed.

        Raises:
            OSError: The directory cannot be created, or already exists.
        """
        with self._lock:
            if self._is_made:
                return
            remove_left(self._path.parent)
            self._held = _make_held(self._path)
            self._is_made = True
            then()

    def close(self) -> None:
        """Release the lock of this process; the directory was removed before."""
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                os.close(held)


def hold(path: str | Path) -> int:
    """Acquire the shared lock of a directory.

    Returns:
        A descriptor. The lock is released when this process and its forks have closed it.

    Raises:
        OSError: The directory does not exist.
    """
    directory = os.open(path, _OPEN)
    try:
        # Some network file systems do not support locks; then no program removes the directory.
        # The call blocks only for a program that removes the directory.
        with suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(directory), os.stat(path)):
            raise FileNotFoundError(f"{str(path)!r} was replaced")
    except BaseException:
        os.close(directory)
        raise
    return directory


def remove_left(folder: Path) -> None:
    """Remove the directories in a folder that killed programs of this user have left.

    Args:
        folder: A folder for temporary files. Directories of other users and of live programs are
            kept.
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
    """Create a directory and lock it.

    Raises:
        OSError: The directory cannot be created.
    """
    for _ in range(_TRIES_MAX):
        os.mkdir(path, 0o700)
        # Another program may have removed the directory before it was locked.
        with suppress(FileNotFoundError):
            return hold(path)
    raise FileNotFoundError(f"{str(path)!r} was removed {_TRIES_MAX} times")
