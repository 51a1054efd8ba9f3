"""The directory where the processes of a host find each other.

It is made when the first of them is about to start, with the warden that removes it: a program that
is killed before has left nothing behind.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["JobDir"]


# What the kernel takes as the path of a socket, without what a process adds to the directory's.
_PATH_LEN_MAX = 107 - len("/4294967295.sock")
# Where a folder for temporary files has a path that is too long, as in deep trees of test runs.
_SHORT = Path("/tmp")


class JobDir:
    """A directory that only its user can enter, once it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._is_made = False

    @staticmethod
    def new_path() -> Path:
        """Gives the path of a directory that is not there yet."""
        name = f"mesh-{os.getpid()}-{secrets.token_hex(8)}"
        path = Path(tempfile.gettempdir()) / name
        return path if len(os.fsencode(path)) <= _PATH_LEN_MAX else _SHORT / name

    def make(self, then: Callable[[], None]) -> None:
        """Makes the directory and does what needs it, once.

        Raises:
            OSError: It cannot be made, or somebody else has.
        """
        with self._lock:
            if self._is_made:
                return
            os.mkdir(self._path, 0o700)
            self._is_made = True
            then()
