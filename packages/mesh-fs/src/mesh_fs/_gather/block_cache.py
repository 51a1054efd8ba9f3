"""A cache of file blocks with a size limit."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["BlockCache"]


class BlockCache:
    """A least-recently-used cache of blocks.

    Args:
        budget_bytes: The size limit.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._of_file: dict[int, set[int]] = {}
        #: The current size, in bytes.
        self.cached_bytes = 0

    def get(self, file: int, block: int) -> bytes | None:
        """Return a block, and mark it as recently used."""
        content = self._blocks.get((file, block))
        if content is not None:
            self._blocks.move_to_end((file, block))
        return content

    def has(self, file: int, block: int) -> bool:
        """Return whether a block is cached."""
        return (file, block) in self._blocks

    def put(self, file: int, block: int, content: bytes) -> None:
        """Add a block, and evict others if the limit is exceeded."""
        self._take(file, block)
        self._blocks[file, block] = content
        self._of_file.setdefault(file, set()).add(block)
        self.cached_bytes += len(content)
        while self.cached_bytes > self._budget_bytes:
            self._take(*next(iter(self._blocks)))

    def drop(self, file: int) -> None:
        """Remove all blocks of a file."""
        for block in list(self._of_file.get(file, ())):
            self._take(file, block)

    def _take(self, file: int, block: int) -> None:
        content = self._blocks.pop((file, block), None)
        if content is None:
            return
        self.cached_bytes -= len(content)
        blocks = self._of_file[file]
        blocks.discard(block)
        if not blocks:
            del self._of_file[file]
