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


class JobDir:
    """A directory that only its user can enter, once it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._is_made = False

    @staticmethod
    def new_path() -> Path:
        """Gives the path of a directory that is not there yet."""
        return Path(tempfile.gettempdir()) / f"mesh-{os.getpid()}-{secrets.token_hex(8)}"

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
