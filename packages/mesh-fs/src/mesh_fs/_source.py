"""The client's side: a snapshot of a directory, and its chunks for those who fetch them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh_core import Actor, concurrent_endpoint
from mesh_fs import _core
from mesh_fs._window import Windows

if TYPE_CHECKING:
    from mesh_fs._options import SnapshotOptions
    from mesh_rdma import RDMABuffer

__all__ = ["Source", "Taken"]


@dataclass(frozen=True)
class Taken:
    """What hosts have to know of a snapshot.

    Attributes:
        id: What tells it from others.
        recipe: What its description is made of.
        skipped: What could not be read, and was left out.
    """

    id: bytes
    recipe: bytes
    skipped: tuple[str, ...]


class Source(Actor):
    """Serves one directory.

    Args:
        root: Its path.
        options: What of it is taken.
    """

    def __init__(self, root: str, options: SnapshotOptions) -> None:
        self._root = root
        self._options = options
        self._snapshot: _core.Snapshot | None = None
        # Hosts may still fetch what they have begun to when there is a newer one.
        self._before: _core.Snapshot | None = None
        self._taking = asyncio.Lock()
        self._windows = Windows()
        self._served_bytes = 0

    @concurrent_endpoint
    async def take(self) -> Taken:
        """Reads the directory as it is now; what was taken before is served meanwhile."""
        async with self._taking:
            snapshot = await asyncio.to_thread(self._take)
            if self._snapshot is None or snapshot.id() != self._snapshot.id():
                self._before = self._snapshot
            self._snapshot = snapshot
        skipped = tuple(str(path) for path in snapshot.skipped())
        return Taken(snapshot.id(), snapshot.recipe(), skipped)

    @concurrent_endpoint
    async def directories(self) -> list[str]:
        """Gives the directories of the last snapshot, by their paths below the root."""
        assert self._snapshot is not None, "it is asked for what was taken"
        return [str(path) for path in await asyncio.to_thread(self._snapshot.directories)]

    @concurrent_endpoint
    async def join(self, reader: str) -> RDMABuffer:
        """Gives a reader its window."""
        return self._windows.open(reader)

    @concurrent_endpoint
    async def fetch(self, reader: str, slot: int, names: bytes) -> list[int]:
        """Puts chunks into a slot of a reader; see `Provider`."""
        lengths = await self._windows.fill(reader, slot, lambda memory: self._put(names, memory))
        self._served_bytes += sum(length for length in lengths if length > 0)
        return lengths

    @concurrent_endpoint
    async def served_bytes(self) -> int:
        """Says how many bytes have left this process."""
        return self._served_bytes

    def _take(self) -> _core.Snapshot:
        options = self._options
        return _core.Snapshot.take(
            self._root,
            self._snapshot,
            ignore=list(options.ignore),
            ignore_files=list(options.ignore_files),
            cross_file_systems=options.cross_file_systems,
            skip_unreadable=options.skip_unreadable,
            threads=options.threads,
        )

    def _put(self, names: bytes, memory: memoryview) -> list[int]:
        assert self._snapshot is not None, "nobody knows of chunks before there is a snapshot"
        return self._snapshot.fill(names, memory, self._before)
