"""Invalidation of the kernel's caches."""

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
#: If more notifications are pending, new ones are dropped; the kernel's cache entries expire soon.
_PENDING_MAX = 10_000


class CacheInvalidator:
    """Sends notifications in threads, because they may block until this process answers requests.

    Args:
        fuse: The module `pyfuse3`.
    """

    def __init__(self, fuse: Any) -> None:
        self._fuse = fuse
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="mesh-invalidator")
        self._pending: dict[tuple[int, bytes], Future[None]] = {}
        self._is_closed = False
        # A thread must not finish a notification before the notification is registered.
        self._lock = Lock()

    def content(self, number: int) -> Future[None] | None:
        """Invalidate the content and attributes of a file; return a future of the completion."""
        return self._notify(number, b"", lambda: self._fuse.invalidate_inode(number))

    def name(self, parent: int, name: bytes) -> None:
        """Invalidate a directory entry that was added, removed or replaced."""
        self._notify(parent, name, lambda: self._fuse.invalidate_entry(parent, name))

    async def close(self) -> None:
        """Wait until all notifications are sent; until then, requests must still be answered."""
        self._is_closed = True
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def _notify(self, number: int, name: bytes, notify: Callable[[], None]) -> Future[None] | None:
        key = number, name
        pending = self._pending.get(key)
        if pending is not None or self._is_closed or len(self._pending) > _PENDING_MAX:
            return pending

        def work() -> None:
            # Changes from now on require another notification.
            with self._lock:
                del self._pending[key]
            try:
                notify()
            except OSError:
                return  # The kernel does not know the file, or is no longer connected.

        with self._lock:
            notice = self._pending[key] = self._threads.submit(work)
        return notice
