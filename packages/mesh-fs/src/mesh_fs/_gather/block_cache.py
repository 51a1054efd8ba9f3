"""Blocks of files, as many as fit into a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["BlockCache"]


class BlockCache:
    """Keeps what was used last.

    Args:
        budget_bytes: How much it may hold.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._of_file: dict[int, set[int]] = {}
        #: How much it holds.
        self.held_bytes = 0

    def get(self, file: int, block: int) -> bytes | None:
        """Gives a block, which counts as used."""
        content = self._blocks.get((file, block))
        if content is not None:
            self._blocks.move_to_end((file, block))
        return content

    def has(self, file: int, block: int) -> bool:
        """Says whether a block is there."""
        return (file, block) in self._blocks

    def put(self, file: int, block: int, content: bytes) -> None:
        """Keeps a block, and gives up others if there is no room."""
        self._take(file, block)
        self._blocks[file, block] = content
        self._of_file.setdefault(file, set()).add(block)
        self.held_bytes += len(content)
        while self.held_bytes > self._budget_bytes:
            self._take(*next(iter(self._blocks)))

    def drop(self, file: int) -> None:
        """Gives up all blocks of a file."""
        for block in list(self._of_file.get(file, ())):
            self._take(file, block)

    def _take(self, file: int, block: int) -> None:
        content = self._blocks.pop((file, block), None)
        if content is None:
            return
        self.held_bytes -= len(content)
        blocks = self._of_file[file]
        blocks.discard(block)
        if not blocks:
            del self._of_file[file]
