"""Access to files strictly below a directory: no symbolic link on the path is followed."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["folder_of", "opened"]

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_NOT_NAMES = frozenset((b"", b".", b".."))


@contextmanager
def folder_of(root: str, path: bytes) -> Iterator[tuple[int, bytes]]:
    """Open the parent directory of a path; yield its descriptor and the last component.

    Args:
        root: The directory that must contain the path. It may itself be a symbolic link whose
            target changes.
        path: A relative path that is not empty.

    Raises:
        OSError: The directory does not exist, or the path leads out of the root.
    """
    *folders, last = _names(path)
    here = os.open(root, _FOLDER)
    try:
        for name in folders:
            there = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = there
        yield here, last
    finally:
        os.close(here)


@contextmanager
def opened(root: str, path: bytes, flags: int) -> Iterator[int]:
    """Open a path; the root itself if the path is empty.

    Raises:
        OSError: The path cannot be opened.
    """
    if not path:
        descriptor = os.open(root, flags | os.O_CLOEXEC)
    else:
        with folder_of(root, path) as (folder, name):
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names(path: bytes) -> list[bytes]:
    names = path.split(b"/")
    if not _NOT_NAMES.isdisjoint(names):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    return names
