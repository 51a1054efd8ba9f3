"""Files that a process writes in memory; others read them even if the process is stopped."""

from __future__ import annotations

import mmap
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["mapped_file"]


def mapped_file(path: Path, length: int) -> mmap.mmap:
    """Create a file of zeros that only this user can read, and map it.

    Args:
        path: The file.
        length: Its length in bytes.

    Raises:
        OSError: It cannot be created, for example because the disk is full.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        # A full disk fails here, not at a later write to the memory.
        os.posix_fallocate(file, 0, length)
        return mmap.mmap(file, length)
    finally:
        os.close(file)
