"""Reports changes of the most recently requested files, up to a limit."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from mesh_fs._gather.messages import FileChanges

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FileWatches"]

_EVENT = struct.Struct("iIII")
_READ_MAX = 1 << 16
#: If there are more changes, they are reported as one: anything may have changed.
_CHANGES_MAX = 4096
#: The minimum interval between two reports.
_PAUSE_S = 0.02

_MODIFY, _ATTRIB = 0x2, 0x4
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_ONLY_FOLDER, _EXCLUDE_UNLINKED = 0x1000000, 0x4000000
_NAME = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_OF_FILE = _MODIFY | _ATTRIB | _DELETE_SELF | _MOVE_SELF
_OF_FOLDER = _NAME | _ATTRIB | _DELETE_SELF | _MOVE_SELF | _ONLY_FOLDER | _EXCLUDE_UNLINKED


class FileWatches:
    """Watches files and directories by inotify.

    If inotify is not available, nothing is watched, and changes are detected at the next access.

    Args:
        count_max: The maximum number of watches. The least recently requested ones are removed.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._system = ctypes.CDLL(None, use_errno=True)
        self._inotify = -1
        if count_max > 0:
            self._inotify = self._system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        # Threads that have just opened files add them.
        self._lock = Lock()
        self._of_path: OrderedDict[bytes, tuple[int, tuple[int, int]]] = OrderedDict()
        self._paths: dict[int, set[bytes]] = {}
        self._files: set[bytes] = set()
        self._names: set[bytes] = set()
        self._is_all = False
        self._changed = asyncio.Event()
        self._reported_s = 0.0
        if self._inotify >= 0:
            asyncio.get_running_loop().add_reader(self._inotify, self._on_readable)

    def add(self, path: bytes, descriptor: int, *, is_folder: bool) -> None:
        """Watch an open file from now on; called before its status is read."""
        if self._inotify < 0:
            return
        stat = os.fstat(descriptor)
        file = stat.st_dev, stat.st_ino
        with self._lock:
            known = self._of_path.get(path)
            if known is not None and known[1] == file:
                self._of_path.move_to_end(path)
                return
            self._remove(path)
            there = f"/proc/self/fd/{descriptor}".encode()
            watch = self._system.inotify_add_watch(
                self._inotify, there, _OF_FOLDER if is_folder else _OF_FILE
            )
            if watch < 0:
                return
            self._of_path[path] = watch, file
            self._paths.setdefault(watch, set()).add(path)
            while len(self._of_path) > self._count_max:
                self._remove(next(iter(self._of_path)))

    async def changes(self) -> FileChanges:
        """Wait until something has changed, and return the changes."""
        loop = asyncio.get_running_loop()
        await self._changed.wait()
        # Continuous changes are reported at intervals.
        await asyncio.sleep(max(0.0, self._reported_s + _PAUSE_S - loop.time()))
        changes = FileChanges(frozenset(self._files), frozenset(self._names), self._is_all)
        self._files, self._names, self._is_all = set(), set(), False
        self._changed.clear()
        self._reported_s = loop.time()
        return changes

    def close(self) -> None:
        """Stop watching."""
        with self._lock:
            inotify, self._inotify = self._inotify, -1
        if inotify >= 0:
            asyncio.get_running_loop().remove_reader(inotify)
            os.close(inotify)

    def _remove(self, path: bytes) -> None:
        watch, _ = self._of_path.pop(path, (-1, None))
        paths = self._paths.get(watch)
        if paths is not None:
            paths.discard(path)
            if not paths:
                del self._paths[watch]
                self._system.inotify_rm_watch(self._inotify, watch)

    def _on_readable(self) -> None:
        try:
            data = os.read(self._inotify, _READ_MAX)
        except BlockingIOError:
            return
        with self._lock:
            for watch, mask, name in _events(data):
                self._record(watch, mask, name)
        if self._files or self._names or self._is_all:
            self._changed.set()

    def _record(self, watch: int, mask: int, name: bytes) -> None:
        if mask & _OVERFLOW or len(self._files) + len(self._names) > _CHANGES_MAX:
            self._files, self._names, self._is_all = set(), set(), True
            return
        if mask & _IGNORED:
            for path in self._paths.pop(watch, set()):
                self._of_path.pop(path, None)
            return
        for path in self._paths.get(watch, ()):
            if not name:
                self._files.add(path)
                continue
            there = path + b"/" + name if path else name
            (self._names if mask & _NAME else self._files).add(there)


def _events(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the watch, the mask and the name of each event."""
    at = 0
    while at < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield watch, mask, data[at : at + length].rstrip(b"\0")
        at += length
