"""Files that stay open between reads, so that a replaced file can still be read."""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from mesh_fs._gather.safe_path import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OpenFileCache"]

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_Key = tuple[bytes, tuple[int, int]]


class _File:
    """A descriptor that is closed when it is neither in use nor in the cache."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0
        self.is_cached = True


class OpenFileCache:
    """The open files of a directory.

    Args:
        root: The directory.
        count_max: The maximum number of open files. The least recently read ones are closed.
    """

    def __init__(self, root: str, count_max: int) -> None:
        self._root = root
        self._count_max = count_max
        self._lock = Lock()
        self._files: OrderedDict[_Key, _File] = OrderedDict()

    @contextmanager
    def use(self, path: bytes, file: tuple[int, int]) -> Iterator[int]:
        """Yield the descriptor of a file; open the file if necessary.

        Raises:
            OSError: The file cannot be opened; ESTALE if the path now refers to another file.
        """
        used = self._known(path, file) or self._open(path, file)
        try:
            yield used.descriptor
        finally:
            self._release(used)

    @contextmanager
    def use_known(self, path: bytes, file: tuple[int, int]) -> Iterator[int | None]:
        """Yield the descriptor of a file if it is open, and None otherwise."""
        used = self._known(path, file)
        if used is None:
            yield None
            return
        try:
            yield used.descriptor
        finally:
            self._release(used)

    def release(self, path: bytes, file: tuple[int, int]) -> None:
        """Remove a file that is no longer read."""
        with self._lock:
            used = self._files.pop((path, file), None)
            if used is not None:
                self._evict(used)

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for used in self._files.values():
                self._evict(used)
            self._files.clear()

    def _known(self, path: bytes, file: tuple[int, int]) -> _File | None:
        with self._lock:
            used = self._files.get((path, file))
            if used is not None:
                self._files.move_to_end((path, file))
                used.users += 1
            return used

    def _open(self, path: bytes, file: tuple[int, int]) -> _File:
        with opened(self._root, path, _READ) as descriptor:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != file:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            used = _File(os.dup(descriptor))
        used.users += 1
        with self._lock:
            # Another thread may have opened it concurrently: that descriptor is closed after its
            # use.
            other = self._files.pop((path, file), None)
            if other is not None:
                self._evict(other)
            self._files[path, file] = used
            while len(self._files) > self._count_max:
                self._evict(self._files.popitem(last=False)[1])
        return used

    def _release(self, used: _File) -> None:
        with self._lock:
            used.users -= 1
            if not used.users and not used.is_cached:
                os.close(used.descriptor)

    def _evict(self, used: _File) -> None:
        used.is_cached = False
        if not used.users:
            os.close(used.descriptor)
