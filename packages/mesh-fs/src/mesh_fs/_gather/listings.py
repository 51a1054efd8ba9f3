"""Listings of directories on hosts, fetched in pages and cached for a limited time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_fs._gather.inode_table import Inode
    from mesh_fs._gather.messages import FileStatus

__all__ = ["Listing", "Listings"]

_LISTINGS_MAX = 64


class Listing:
    """The content of a directory, as far as it was requested."""

    def __init__(self, node: Inode) -> None:
        self._node = node
        self._entries: list[tuple[bytes, FileStatus, float]] = []
        self._is_complete = False
        self._lock = asyncio.Lock()
        self.started_s = asyncio.get_running_loop().time()

    async def at(self, place: int) -> tuple[bytes, FileStatus, float] | None:
        """Return an entry: its name, its status and the time of the request; None at the end.

        Raises:
            OSError: The error of the host.
        """
        while place >= len(self._entries):
            async with self._lock:
                if place < len(self._entries):
                    break
                if self._is_complete:
                    return None
                await self._load()
        return self._entries[place]

    async def _load(self) -> None:
        node = self._node
        assert node.client is not None, "the top is no directory of a host"
        requested_s = asyncio.get_running_loop().time()
        after = self._entries[-1][0] if self._entries else b""
        page = await node.client.page(node.path, after)
        self._entries += [(name, status, requested_s) for name, status in page.entries]
        # If all entries after the last one were removed, no position is left to continue from.
        self._is_complete = page.is_last or not page.entries


class Listings:
    """The most recently used listings.

    Args:
        ttl_s: The lifetime of a listing, in seconds.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._listings: OrderedDict[int, Listing] = OrderedDict()

    def of(self, node: Inode) -> Listing:
        """Return a current listing of a directory."""
        now_s = asyncio.get_running_loop().time()
        kept = self._listings.pop(node.number, None)
        if kept is None or kept.started_s + self._ttl_s < now_s:
            kept = Listing(node)
        self._listings[node.number] = kept
        while len(self._listings) > _LISTINGS_MAX:
            self._listings.popitem(last=False)
        return kept

    def drop(self, node: Inode) -> None:
        """Discard the listing of a directory that has changed."""
        self._listings.pop(node.number, None)

    def clear(self) -> None:
        """Discard all listings."""
        self._listings.clear()
