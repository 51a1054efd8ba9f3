"""The content of files on hosts: fetched in blocks, with read-ahead, and cached."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

from mesh_fs._gather.block_cache import BlockCache
from mesh_fs._gather.host_client import BLOCK_BYTES, FETCH_BLOCKS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mesh_fs._gather.inode_table import Inode
    from mesh_fs._gather.messages import FileStatus
    from mesh_fs._options import GatherOptions

__all__ = ["FileContent", "OpenFile"]

#: After this many retries, a read of a file that keeps changing may combine several versions.
_RETRIES_MAX = 2
#: The initial size of the read-ahead window.
_AHEAD_MIN_BYTES = 512 << 10
#: The kernel requests adjacent ranges in any order; offsets this close count as sequential.
_DISORDER_BYTES = 1 << 20


class OpenFile:
    """An open file, with its read position."""

    def __init__(self, node: Inode) -> None:
        self.node = node
        self.next = 0
        self.window_bytes = 0
        self.ahead = 0
        self.epoch = node.epoch

    def move(self, offset: int, size: int, window_max: int) -> None:
        """Update the read position, and the size of the read-ahead window in `window_bytes`."""
        if self.epoch != self.node.epoch:
            self.epoch, self.ahead = self.node.epoch, 0
        if abs(offset - self.next) > _DISORDER_BYTES:
            self.window_bytes = self.ahead = 0
        elif offset:
            doubled = max(2 * self.window_bytes, _AHEAD_MIN_BYTES)
            self.window_bytes = min(doubled, window_max)
        self.next = offset + size


class FileContent:
    """Reads files on hosts.

    Args:
        options: The sizes of the cache and of read-ahead.
        on_status: Called with a file, its status, and the time at which that was requested.
    """

    def __init__(
        self, options: GatherOptions, on_status: Callable[[Inode, FileStatus, float], None]
    ) -> None:
        self._cache = BlockCache(options.cache_bytes)
        # A larger window would evict blocks before they are read.
        self._ahead_max = min(options.read_ahead_bytes, options.cache_bytes // 4)
        self._ttl_s = options.attributes_ttl_s
        self._on_status = on_status
        self._tasks: set[asyncio.Task[dict[int, bytes]]] = set()

    async def read(self, open_file: OpenFile, offset: int, size: int) -> bytes | memoryview:
        """Read bytes of a file; fewer are returned at its end.

        Raises:
            OSError: The error of the host.
        """
        node = open_file.node
        node.is_read = True
        epoch, blocks = node.epoch, await self._blocks(open_file, offset, size)
        for _ in range(_RETRIES_MAX):
            if node.epoch == epoch:
                break
            epoch, blocks = node.epoch, await self._blocks(open_file, offset, size)
        return _slice(blocks, offset - offset // BLOCK_BYTES * BLOCK_BYTES, size)

    def drop(self, node: Inode) -> None:
        """Discard the cached content of a file that has changed or is no longer known."""
        node.epoch += 1
        node.untrusted_from_s = None
        # Pending fetches complete only the reads that already wait for them.
        node.pending.clear()
        self._cache.drop(node.number)

    @property
    def cached_bytes(self) -> int:
        """The size of the cache."""
        return self._cache.cached_bytes

    async def close(self) -> None:
        """Cancel pending fetches."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _blocks(self, open_file: OpenFile, offset: int, size: int) -> list[bytes]:
        node = open_file.node
        wanted = range(offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES + 1)
        found: dict[int, bytes] = {}
        for index in wanted:
            content = self._cache.get(node.number, index)
            if content is not None:
                found[index] = content
        self._start(node, wanted, is_urgent=True)
        waits = {node.pending[index] for index in wanted if index in node.pending}
        open_file.move(offset, size, self._ahead_max)
        self._read_ahead(open_file)
        if waits:
            await asyncio.wait(waits)
            for task in waits:
                if task.cancelled():
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                found |= {index: one for index, one in task.result().items() if index in wanted}
        return [found.get(index, b"") for index in wanted]

    def _read_ahead(self, open_file: OpenFile) -> None:
        """Fetch the next blocks when half of the previous read-ahead has been consumed."""
        node, window = open_file.node, open_file.window_bytes
        end = open_file.next + window
        if node.status is not None:
            end = min(end, node.status.size)
        start = max(open_file.ahead, open_file.next)
        if not window or start >= end or open_file.ahead - open_file.next > window // 2:
            return
        open_file.ahead = end
        blocks = range(-(-start // BLOCK_BYTES), -(-end // BLOCK_BYTES))
        self._start(node, blocks, is_urgent=False)

    def _start(self, node: Inode, wanted: Iterable[int], *, is_urgent: bool) -> None:
        """Start fetching those blocks that are neither cached nor pending."""
        missing = (
            index
            for index in wanted
            if index not in node.pending and not self._cache.has(node.number, index)
        )
        for first, count in _runs(missing):
            task = asyncio.create_task(self._fetch(node, first, count, is_urgent=is_urgent))
            self._tasks.add(task)
            task.add_done_callback(self._done)
            node.pending |= dict.fromkeys(range(first, first + count), task)

    async def _fetch(
        self, node: Inode, first: int, count: int, *, is_urgent: bool
    ) -> dict[int, bytes]:
        assert node.client is not None, "the top is no file"
        assert node.status is not None, "it was looked at before it was opened"
        epoch, requested_s = node.epoch, asyncio.get_running_loop().time()
        try:
            result, contents = await node.client.blocks(
                node.path, node.status.file, first, count, is_urgent=is_urgent
            )
            blocks = dict(enumerate(contents, first))
            if node.epoch == epoch:
                self._on_status(node, result.status, requested_s)
                if result.is_whole and node.status.version == result.status.version:
                    self._add_to_cache(node, blocks, result.status)
            return blocks
        finally:
            own = asyncio.current_task()
            for index in range(first, first + count):
                if node.pending.get(index) is own:
                    del node.pending[index]

    def _add_to_cache(self, node: Inode, blocks: dict[int, bytes], status: FileStatus) -> None:
        if not status.is_settled and node.untrusted_from_s is None:
            node.untrusted_from_s = asyncio.get_running_loop().time() + self._ttl_s
        for index, content in blocks.items():
            self._cache.put(node.number, index, content)

    def _done(self, task: asyncio.Task[dict[int, bytes]]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Retrieve the exception, because possibly no read waits for the blocks.
            task.exception()


def _runs(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Combine adjacent indices; yield the first index of each run and its length."""
    first = count = 0
    for index in indices:
        if count and index == first + count and count < FETCH_BLOCKS_MAX:
            count += 1
            continue
        if count:
            yield first, count
        first, count = index, 1
    if count:
        yield first, count


def _slice(blocks: list[bytes], start: int, size: int) -> bytes | memoryview:
    """Return bytes from consecutive blocks, up to the first block that is not full."""
    if len(blocks) == 1:
        return memoryview(blocks[0])[start : start + size]
    parts: list[memoryview] = []
    for block in blocks:
        part = memoryview(block)[start : start + size]
        parts.append(part)
        size -= len(part)
        start = 0
        if len(block) < BLOCK_BYTES:
            break
    return b"".join(parts)
