"""Tells the kernel what is not as it was any more."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["CacheInvalidator"]

_THREADS = 4
#: When the kernel is told too much it is told nothing, and asks by itself before long.
_WAITING_MAX = 10_000


class CacheInvalidator:
    """Tells it in threads: it may wait for reads and listings that this process is to answer.

    Args:
        fuse: The module `pyfuse3`.
    """

    def __init__(self, fuse: Any) -> None:
        self._fuse = fuse
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="mesh-invalidator")
        self._waiting: dict[tuple[int, bytes], Future[None]] = {}
        self._is_closed = False
        # A thread must not be done with a notice before that is noted.
        self._lock = Lock()

    def content(self, number: int) -> Future[None] | None:
        """Says that a file has another content, or other attributes; gives what is done then."""
        return self._tell(number, b"", lambda: self._fuse.invalidate_inode(number))

    def name(self, parent: int, name: bytes) -> None:
        """Says that a name in a directory has come, gone, or stands for another file."""
        self._tell(parent, name, lambda: self._fuse.invalidate_entry(parent, name))

    async def close(self) -> None:
        """Waits until the kernel was told; what it waits for itself must be answered meanwhile."""
        self._is_closed = True
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def _tell(self, number: int, name: bytes, tell: Callable[[], None]) -> Future[None] | None:
        key = number, name
        waiting = self._waiting.get(key)
        if waiting is not None or self._is_closed or len(self._waiting) > _WAITING_MAX:
            return waiting

        def work() -> None:
            # What changes from now on is another notice.
            with self._lock:
                del self._waiting[key]
            try:
                tell()
            except OSError:
                return  # It does not know it, or is not there any more.

        with self._lock:
            notice = self._waiting[key] = self._threads.submit(work)
        return notice
