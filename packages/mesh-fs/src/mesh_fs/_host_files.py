"""A host's side: its chunks, what is shown of them, and handing them on to other hosts."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh_core import Actor, concurrent_endpoint, current_rank, endpoint
from mesh_fs import _core
from mesh_fs._chunk_names import joined, parts, split
from mesh_fs._delivery import BATCH_MAX, Delivery, in_background
from mesh_fs._errors import MountError, SnapshotError
from mesh_fs._followers import nearest_first
from mesh_fs._presented import Mounted, WrittenOut, present
from mesh_fs._window import Windows

if TYPE_CHECKING:
    from mesh_core import Point
    from mesh_fs._options import CacheOptions, MountOptions
    from mesh_fs._source import Source
    from mesh_rdma import RDMABuffer

__all__ = ["HostFiles", "HostStatus"]

_SUBDIR = "$SUBDIR"
#: How many batches are fetched beside each other before anybody has asked for them.
_PREFETCHES_MAX = 4


@dataclass(frozen=True)
class HostStatus:
    """How far a mount is on one host.

    Attributes:
        host: The machine's name.
        mountpoint: Where the files are.
        way: How they are shown: `"fuse"` or `"unpack"`.
        why: Why in this way.
        is_complete: Whether all files are on the host.
        is_open: Whether they are shown; not any more if somebody has unmounted them.
        total_bytes: What there is to fetch, each chunk once.
        fetched_bytes: What came over the network, or from other processes.
        cached_bytes: What the host keeps, of all mounts.
        problem: What went wrong with some files; None if nothing did.
    """

    host: str
    mountpoint: str
    way: str
    why: str
    is_complete: bool
    is_open: bool
    total_bytes: int
    fetched_bytes: int
    cached_bytes: int
    problem: str | None


class HostFiles(Actor):
    """Shows one tree on its host, and gives chunks of it to others.

    Args:
        mountpoint: Where; `$SUBDIR` in it stands for the host's place in the mesh.
        cache: Where the host keeps chunks.
        options: How the tree is shown.
    """

    def __init__(self, mountpoint: str, cache: CacheOptions, options: MountOptions) -> None:
        self._mountpoint = mountpoint.replace(_SUBDIR, subdirectory(current_rank()))
        self._options = options
        self._store = _core.Store(
            os.fspath(cache.place()), budget_bytes=cache.budget_bytes, keep_cached=False
        )
        self._windows = Windows()
        self._delivery: Delivery | None = None
        self._presented: Mounted | WrittenOut | None = None
        self._tree: _core.Tree | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # What could be fetched has been; it is complete if that was all.
        self._fetched = asyncio.Event()
        self._is_complete = False
        self._problem: str | None = None

    @endpoint
    async def follow(self, hosts: HostFiles, source: Source) -> None:
        """Says who gives chunks to this host: those above it, and the client when they are gone."""
        rank = current_rank().rank
        reader = f"{rank}/{socket.gethostname()}/{os.getpid()}"
        above = (hosts.slice(host=one) for one in nearest_first(rank))
        providers: list[HostFiles | Source] = [*above, source]
        self._delivery = Delivery(self._store, providers, reader, self._on_arrival)

    @concurrent_endpoint
    async def show(self, recipe: bytes) -> HostStatus:
        """Shows a tree, or another one than before, and fetches what is in it."""
        tree = await self._fetch_tree(recipe)
        self._tree = tree
        self._fetched.clear()
        self._is_complete, self._problem = False, None
        if self._presented is None:
            presented = await asyncio.to_thread(
                present, tree, self._store, self._mountpoint, self._options
            )
            self._presented = presented
            if isinstance(presented, Mounted):
                asyncio.get_running_loop().add_reader(presented.view, self._on_wanted)
        if self._presented.needs_all:
            await self._fetch_all(tree)
        await asyncio.to_thread(self._presented.show, tree)
        if self._options.is_prefetched and not self._presented.needs_all:
            in_background(self._fetch_all(tree), self._tasks)
        return self._status()

    @concurrent_endpoint
    async def join(self, reader: str) -> RDMABuffer:
        """Gives a reader its window."""
        return self._windows.open(reader)

    @concurrent_endpoint
    async def fetch(self, reader: str, slot: int, names: bytes) -> list[int]:
        """Puts chunks into a slot of a reader, and fetches them before if need be."""
        await self._bring(names, is_urgent=True)
        return await self._windows.fill(
            reader, slot, lambda memory: self._store.fill(names, memory)
        )

    @concurrent_endpoint
    async def complete(self) -> HostStatus:
        """Waits until all files are on the host, as far as they can be had."""
        assert self._tree is not None, "it is asked for a tree that is shown"
        if self._options.is_prefetched:
            await self._fetched.wait()
        else:
            await self._fetch_all(self._tree)
        return self._status()

    @concurrent_endpoint
    async def status(self) -> HostStatus:
        """Says how far it is."""
        return self._status()

    @endpoint
    async def close(self) -> None:
        """Shows nothing any more."""
        await self._close()

    async def __cleanup__(self, error: Exception | None) -> None:
        with suppress(MountError):
            await self._close()

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        presented, self._presented = self._presented, None
        if presented is not None:
            if isinstance(presented, Mounted):
                asyncio.get_running_loop().remove_reader(presented.view)
            await asyncio.to_thread(presented.close)

    async def _fetch_tree(self, recipe: bytes) -> _core.Tree:
        joined_now: _core.Recipe | _core.Tree = _core.Recipe(recipe)
        while isinstance(joined_now, _core.Recipe):
            refused = await self._bring(joined_now.chunks(), is_urgent=True)
            if refused:
                why = next(iter(refused.values()))
                raise SnapshotError(f"the description of the tree cannot be fetched: {why}")
            joined_now = await asyncio.to_thread(joined_now.join, self._store)
        return joined_now

    async def _fetch_all(self, tree: _core.Tree) -> None:
        """Fetches a tree, a few batches at a time."""
        batches = parts(tree.chunks(), BATCH_MAX)
        refused_count = 0

        async def fetch_next() -> None:
            nonlocal refused_count
            for batch in batches:
                refused_count += len(await self._bring(batch))

        await asyncio.gather(*(fetch_next() for _ in range(_PREFETCHES_MAX)))
        if tree is self._tree:
            self._is_complete = refused_count == 0
            self._fetched.set()

    async def _bring(self, names: bytes, *, is_urgent: bool = False) -> dict[bytes, str]:
        assert self._delivery is not None, "it was told before whom to follow"
        refused = await self._delivery.bring(names, is_urgent=is_urgent)
        if refused:
            self._problem = next(iter(refused.values()))
        return refused

    def _on_wanted(self) -> None:
        if isinstance(self._presented, Mounted):
            names = self._presented.view.take_wanted(BATCH_MAX)
            if names:
                in_background(self._answer(names), self._tasks)

    async def _answer(self, names: bytes) -> None:
        """Fetches what reads wait for; those that wait for something else too go on waiting."""
        try:
            refused = await self._bring(names, is_urgent=True)
        except Exception as error:
            refused = dict.fromkeys(split(names), str(error))
        if isinstance(self._presented, Mounted):
            there = joined(name for name in split(names) if name not in refused)
            self._presented.view.arrived(there)
            self._presented.view.refuse(joined(refused))

    def _on_arrival(self, names: bytes) -> None:
        if isinstance(self._presented, Mounted):
            self._presented.view.arrived(names)

    def _status(self) -> HostStatus:
        assert self._tree is not None, "it is asked for a tree that is shown"
        presented = self._presented
        cached, *_ = self._store.usage()
        *_, total = self._tree.totals()
        return HostStatus(
            host=socket.gethostname(),
            mountpoint="" if presented is None else presented.mountpoint,
            way="" if presented is None else presented.way,
            why="" if presented is None else presented.why,
            is_complete=self._is_complete,
            is_open=presented is not None and presented.is_open,
            total_bytes=total,
            fetched_bytes=0 if self._delivery is None else self._delivery.fetched_bytes,
            cached_bytes=cached,
            problem=self._problem,
        )


def subdirectory(point: Point) -> str:
    """Gives a name that no other host of the mesh has, as `hosts_0`."""
    return "_".join(f"{label}_{place}" for label, place in point.items())
