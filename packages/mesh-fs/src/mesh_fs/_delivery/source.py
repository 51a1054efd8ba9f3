"""The client side: a snapshot of a directory, and its chunks for the hosts."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh_core import Actor, concurrent_endpoint
from mesh_fs import _core
from mesh_fs._delivery.fetcher import in_background
from mesh_fs._delivery.window import Windows
from mesh_fs._errors import StoreError

if TYPE_CHECKING:
    from mesh_fs._options import CacheOptions, SnapshotOptions
    from mesh_rdma import RDMABuffer

__all__ = ["SnapshotManifest", "Source"]

_logger = logging.getLogger(__name__)

#: The subfolder of the chunk folder that contains the ledgers.
_LEDGERS = "ledgers"
#: Opening a file takes about as long as reading this many bytes of it.
_OPENING_BYTES = 16 << 10


@dataclass(frozen=True)
class SnapshotManifest:
    """The data that hosts need to fetch a snapshot.

    Attributes:
        id: Identifies the snapshot.
        recipe: The list of the chunks of its description.
        skipped: The paths that could not be read and were omitted.
    """

    id: bytes
    recipe: bytes
    skipped: tuple[str, ...]


class Source(Actor):
    """Serves one directory.

    Args:
        root: The path of the directory.
        options: Snapshot options, such as patterns of files to exclude.
        cache: The location of the ledger of file contents, which later programs use.
    """

    def __init__(self, root: str, options: SnapshotOptions, cache: CacheOptions) -> None:
        self._root = root
        self._options = options
        self._cache = cache
        self._ledger: _core.Ledger | None = None
        # The size of the ledger, and the cost of reading again what the ledger does not contain
        # yet.
        self._ledger_bytes = 0
        self._unsaved_bytes = 0
        self._saving = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._snapshot: _core.Snapshot | None = None
        # Hosts may still fetch chunks of the previous snapshot.
        self._previous: _core.Snapshot | None = None
        self._taking = asyncio.Lock()
        self._windows = Windows()
        self._served_bytes = 0

    @concurrent_endpoint
    async def take(self) -> SnapshotManifest:
        """Take a snapshot of the directory; the previous snapshot is served at the same time."""
        async with self._taking:
            snapshot = await asyncio.to_thread(self._take)
            if self._snapshot is None or snapshot.id() != self._snapshot.id():
                self._previous = self._snapshot
            self._snapshot = snapshot
        in_background(self._save_ledger(snapshot), self._tasks)
        skipped = tuple(str(path) for path in snapshot.skipped())
        return SnapshotManifest(snapshot.id(), snapshot.recipe(), skipped)

    @concurrent_endpoint
    async def directories(self) -> list[str]:
        """Return the directories of the last snapshot, as paths relative to the root."""
        assert self._snapshot is not None, "this is called only after a snapshot was taken"
        return [str(path) for path in await asyncio.to_thread(self._snapshot.directories)]

    @concurrent_endpoint
    async def join(self, reader: str) -> RDMABuffer:
        """Return the window of a reader."""
        return self._windows.open(reader)

    @concurrent_endpoint
    async def fetch(self, reader: str, slot: int, names: bytes) -> list[int]:
        """Put chunks into a slot of a reader, like `Relay.fetch`."""
        lengths = await self._windows.fill(reader, slot, lambda memory: self._put(names, memory))
        self._served_bytes += sum(length for length in lengths if length > 0)
        return lengths

    @concurrent_endpoint
    async def served_bytes(self) -> int:
        """Return the number of bytes that this process has sent."""
        return self._served_bytes

    async def __cleanup__(self, error: Exception | None) -> None:
        await asyncio.gather(*self._tasks)

    def _take(self) -> _core.Snapshot:
        options = self._options
        if self._snapshot is None:
            self._ledger = self._open_ledger()
        return _core.Snapshot.take(
            self._root,
            self._snapshot,
            self._ledger,
            ignore=list(options.ignore),
            ignore_files=list(options.ignore_files),
            cross_file_systems=options.cross_file_systems,
            skip_unreadable=options.skip_unreadable,
            threads=options.threads,
        )

    def _open_ledger(self) -> _core.Ledger | None:
        """Open the ledger of earlier programs; return None if it cannot be trusted."""
        options = self._options
        if not options.is_cached:
            return None
        try:
            return _core.Ledger(
                self._cache.place() / _LEDGERS,
                self._root,
                ignore=list(options.ignore),
                ignore_files=list(options.ignore_files),
                cross_file_systems=options.cross_file_systems,
                skip_unreadable=options.skip_unreadable,
            )
        # A RuntimeError occurs if the user has no home directory.
        except (StoreError, RuntimeError) as error:
            _logger.info("the ledger of %s is not saved: %s", self._root, error)
            return None

    async def _save_ledger(self, snapshot: _core.Snapshot) -> None:
        """Save the ledger for later programs, if that saves more than it costs."""
        files, count = snapshot.read()
        self._unsaved_bytes += files * _OPENING_BYTES + count
        async with self._saving:
            if self._ledger is None or self._unsaved_bytes <= self._ledger_bytes:
                return
            self._unsaved_bytes = 0
            try:
                self._ledger_bytes = await asyncio.to_thread(self._ledger.save, snapshot)
            except OSError as error:
                _logger.info("the ledger of %s is not saved: %s", self._root, error)

    def _put(self, names: bytes, memory: memoryview) -> list[int]:
        assert self._snapshot is not None, "no chunk is known before a snapshot exists"
        return self._snapshot.fill(names, memory, self._previous)
