"""The chunks of one host: fetched from ancestors in the distribution tree, served to readers."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from mesh_core import Actor, concurrent_endpoint, current_rank, endpoint
from mesh_fs import _core
from mesh_fs._delivery.chunk_ids import parts
from mesh_fs._delivery.fetcher import BATCH_MAX, ChunkFetcher
from mesh_fs._delivery.window import Windows
from mesh_fs._errors import SnapshotError

if TYPE_CHECKING:
    from mesh_fs._delivery.distribution_tree import DistributionTree
    from mesh_fs._delivery.source import Source
    from mesh_fs._options import CacheOptions
    from mesh_rdma import RDMABuffer

__all__ = ["Relay"]

#: The maximum number of batches that are fetched concurrently.
_BATCHES_MAX = 4


class Relay(Actor):
    """Keeps chunks on its host; subclasses determine their use.

    Args:
        cache: The location and size limit of the chunks on the host.
    """

    def __init__(self, cache: CacheOptions) -> None:
        self._store = _core.Store(
            os.fspath(cache.place()), budget_bytes=cache.budget_bytes, keep_cached=False
        )
        # The rank in the mesh of the actor, independent of the mesh to which a message is sent.
        self._rank = current_rank().rank
        self._windows = Windows()
        self._fetcher: ChunkFetcher | None = None
        self._problem: str | None = None

    @endpoint
    async def set_providers(self, distribution: DistributionTree[Relay], source: Source) -> None:
        """Set the providers of this host: its ancestors, then the client."""
        reader = f"{distribution.place_of(self._rank)}/{socket.gethostname()}/{os.getpid()}"
        providers: list[Relay | Source] = [*distribution.ancestors(self._rank), source]
        self._fetcher = ChunkFetcher(self._store, providers, reader, self._on_arrival)
        self._fetcher.prepare()

    @concurrent_endpoint
    async def join(self, reader: str) -> RDMABuffer:
        """Return the window of a reader."""
        return self._windows.open(reader)

    @concurrent_endpoint
    async def fetch(self, reader: str, slot: int, names: bytes) -> list[int]:
        """Put chunks into a slot of a reader; fetch missing chunks first."""
        await self._ensure(names, is_urgent=True)
        return await self._windows.fill(
            reader, slot, lambda memory: self._store.fill(names, memory)
        )

    async def _fetch_tree(self, recipe: bytes) -> _core.Tree:
        """Fetch the description of a tree."""
        joined_now: _core.Recipe | _core.Tree = _core.Recipe(recipe)
        while isinstance(joined_now, _core.Recipe):
            refused = await self._ensure(joined_now.chunks(), is_urgent=True)
            if refused:
                why = next(iter(refused.values()))
                raise SnapshotError(f"the description of the tree cannot be fetched: {why}")
            joined_now = await asyncio.to_thread(joined_now.join, self._store)
        return joined_now

    async def _fetch_each(self, names: bytes) -> dict[bytes, str]:
        """Fetch any number of chunks, a few batches at a time; return unavailable ones."""
        batches = parts(names, BATCH_MAX)
        refused: dict[bytes, str] = {}

        async def fetch_next() -> None:
            for batch in batches:
                refused.update(await self._ensure(batch))

        await asyncio.gather(*(fetch_next() for _ in range(_BATCHES_MAX)))
        return refused

    async def _ensure(self, names: bytes, *, is_urgent: bool = False) -> dict[bytes, str]:
        assert self._fetcher is not None, "set_providers is called first"
        refused = await self._fetcher.ensure(names, is_urgent=is_urgent)
        if refused:
            self._problem = next(iter(refused.values()))
        return refused

    def _on_arrival(self, names: bytes) -> None:
        """Handle chunks that have arrived; called with their names, in any thread."""
