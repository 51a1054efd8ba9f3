"""The page cache of the kernel."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FAILED = ctypes.c_void_p(-1).value


def cached_bytes(root: Path) -> int:
    """Return the cached bytes of all files below a folder; the caller must own the files."""
    total = 0
    for file in _files(root):
        if size := os.fstat(file).st_size:
            with _mapped(file, size) as address:
                pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
                _check(_LIBC.mincore(address, size, pages) == 0)
                total += sum(page & 1 for page in pages.raw) * mmap.PAGESIZE
    return total


def evict(root: Path) -> None:
    """Drop the files below a folder from the page cache, as if memory were short."""
    for file in _files(root):
        # Dirty pages cannot be dropped.
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _files(root: Path) -> Iterator[int]:
    for folder, _, names in os.walk(root):
        for name in names:
            file = os.open(f"{folder}/{name}", os.O_RDONLY)
            try:
                yield file
            finally:
                os.close(file)


@contextmanager
def _mapped(file: int, size: int) -> Iterator[int]:
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    _check(address != _FAILED)
    try:
        yield address
    finally:
        _LIBC.munmap(address, size)


def _check(is_done: bool) -> None:
    if not is_done:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
