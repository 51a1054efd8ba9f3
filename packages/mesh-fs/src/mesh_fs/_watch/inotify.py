"""Notifications of the kernel about changes in directories."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_fs._errors import WatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["InotifyWatches"]

#: The maximum number of directories that one mount watches.
_WATCHES_MAX = 200_000
#: The maximum number of event buffers read at once, so that other tasks can run.
_READS_MAX = 16
_BUFFER_BYTES = 1 << 16

# From linux/inotify.h: writes, attributes, moves, creation, removal, and changes of the directory
# itself.
_CHANGES = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
_ONLY_DIRECTORIES = 0x01000000 | 0x02000000
_UNMOUNTED = 0x2000
_OVERFLOW = 0x4000
_IGNORED = 0x8000

_EVENT_HEADER = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)


class InotifyWatches:
    """Watches directories, each without its subdirectories.

    Args:
        watches_max: The maximum number of directories.

    Raises:
        WatchError: The user has reached the kernel's limit of inotify instances.
    """

    def __init__(self, watches_max: int = _WATCHES_MAX) -> None:
        self._watches_max = watches_max
        self._watched: set[int] = set()
        self._queue: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._queue < 0:
            code = ctypes.get_errno()
            raise WatchError(
                f"changes cannot be watched ({os.strerror(code)}): raise "
                f"fs.inotify.max_user_instances, which is {_limit('max_user_instances')}"
            )

    def fileno(self) -> int:
        """Return the file descriptor, which is readable when `take` has events to process."""
        return self._queue

    def watch_only(self, paths: Iterable[str]) -> bool:
        """Watch exactly these directories; return whether some of them were not watched before.

        A directory that does not exist is skipped, because its parent has changed.

        Raises:
            WatchError: There are too many directories; only some of them are watched.
        """
        wanted = sorted(set(paths), key=len)
        if len(wanted) > self._watches_max:
            raise WatchError(
                f"{len(wanted)} directories are too many to watch, at most {self._watches_max}: "
                "list some in .meshignore"
            )
        before, now = self._watched, set[int]()
        # Add all of them, because a path may now refer to another directory; for a directory that
        # is already watched, the kernel returns the same number. Directories near the root come
        # first, because they cover most changes.
        try:
            now.update(number for path in wanted if (number := self._add(path)) is not None)
        except WatchError:
            self._watched = before | now
            raise
        self._watched = now
        for number in before - now:
            # The kernel may already have removed the watch.
            _libc.inotify_rm_watch(self._queue, number)
        return bool(now - before)

    def take(self) -> bool:
        """Process all pending events; return whether anything has changed."""
        is_changed = False
        for _ in range(_READS_MAX):
            try:
                events = os.read(self._queue, _BUFFER_BYTES)
            except BlockingIOError:
                break
            at = 0
            while at < len(events):
                number, mask, _, name_bytes = _EVENT_HEADER.unpack_from(events, at)
                at += _EVENT_HEADER.size + name_bytes
                is_changed |= self._process_event(number, mask)
        return is_changed

    def close(self) -> None:
        """Stop watching."""
        queue, self._queue = self._queue, -1
        if queue >= 0:
            os.close(queue)

    def _process_event(self, number: int, mask: int) -> bool:
        if mask & _IGNORED:
            self._watched.discard(number)
        return bool(mask & (_CHANGES | _UNMOUNTED | _OVERFLOW))

    def _add(self, path: str) -> int | None:
        number: int = _libc.inotify_add_watch(
            self._queue, os.fsencode(path), ctypes.c_uint32(_CHANGES | _ONLY_DIRECTORIES)
        )
        if number >= 0:
            return number
        if ctypes.get_errno() == errno.ENOSPC:
            raise WatchError(
                "no more directories can be watched: raise fs.inotify.max_user_watches, which is "
                f"{_limit('max_user_watches')}, or list some in .meshignore"
            )
        return None


def _limit(name: str) -> str:
    try:
        return Path("/proc/sys/fs/inotify", name).read_text().strip()
    except OSError:
        return "not known"
