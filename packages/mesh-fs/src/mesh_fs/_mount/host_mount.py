"""The host side of a mount: shows a tree whose chunks it fetches."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from mesh_core import concurrent_endpoint, endpoint
from mesh_fs._delivery.chunk_ids import joined, split
from mesh_fs._delivery.fetcher import BATCH_MAX, in_background
from mesh_fs._delivery.relay import Relay
from mesh_fs._errors import ChunksMissing, MountError
from mesh_fs._mount.backends import FuseBackend, open_backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_fs import _core
    from mesh_fs._mount.backends import MountBackend
    from mesh_fs._options import CacheOptions, MountOptions

__all__ = ["HostFiles", "HostStatus", "local_statuses"]

#: The maximum number of attempts to show a tree whose chunks are damaged on disk.
_TRIES_MAX = 3


@dataclass(frozen=True)
class HostStatus:
    """The status of a mount on one host.

    Attributes:
        host: The name of the machine.
        mountpoint: The path of the files.
        backend: The method: `"fuse"` or `"unpack"`.
        why: The reason for this method.
        is_complete: Whether all files are on the host.
        is_open: Whether the files are shown; False if they were unmounted externally.
        files: The number of files.
        total_bytes: The total size of the chunks; each chunk counts once.
        here_bytes: How much of that is on the host. Until the last chunk arrives, this is an
            estimate that counts all chunks as equally large.
        fetched_bytes: The number of bytes received over the network or from other processes.
        cached_bytes: The number of bytes that the host keeps for all mounts.
        problem: Why some files are unavailable; None if there is no problem.
    """

    host: str
    mountpoint: str
    backend: str
    why: str
    is_complete: bool
    is_open: bool
    files: int
    total_bytes: int
    here_bytes: int
    fetched_bytes: int
    cached_bytes: int
    problem: str | None


#: The instances in this process that show a tree, or are about to.
_mounted: WeakSet[HostFiles] = WeakSet()


class HostFiles(Relay):
    """Shows a tree on its host, and provides its chunks to other hosts.

    Args:
        mountpoints: The mountpoint of each host of the mesh.
        cache: The location and size limit of the chunks on the host.
        options: Mount options.
    """

    def __init__(
        self, mountpoints: Sequence[str], cache: CacheOptions, options: MountOptions
    ) -> None:
        super().__init__(cache)
        self._mountpoint = mountpoints[self._rank]
        self._options = options
        self._cache = cache
        self._backend: MountBackend | None = None
        self._tree: _core.Tree | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Set when all available chunks have been fetched; `_is_complete` if none was unavailable.
        self._fetched = asyncio.Event()
        self._is_complete = False

    @concurrent_endpoint
    async def show(self, recipe: bytes) -> None:
        """Show a tree, or replace the current one, and fetch its files."""
        tree = await self._fetch_tree(recipe)
        self._tree = tree
        _mounted.add(self)
        self._fetched.clear()
        self._is_complete, self._problem = False, None
        if self._backend is None:
            backend = await asyncio.to_thread(
                open_backend, tree, self._store, self._mountpoint, self._options, self._cache
            )
            self._backend = backend
            if isinstance(backend, FuseBackend):
                asyncio.get_running_loop().add_reader(backend.view, self._on_chunk_requests)
        if self._backend.needs_all:
            await self._show_all(self._backend, tree)
        else:
            await asyncio.to_thread(self._backend.show, tree)
        if self._options.is_prefetched and not self._backend.needs_all:
            in_background(self._fetch_all(tree), self._tasks)

    @concurrent_endpoint
    async def complete(self) -> HostStatus:
        """Wait until all available files are on the host."""
        assert self._tree is not None, "this is called only after a tree is shown"
        if self._options.is_prefetched:
            await self._fetched.wait()
        else:
            await self._fetch_all(self._tree)
        return await self._status()

    @concurrent_endpoint
    async def status(self) -> HostStatus:
        """Return the status of the mount."""
        return await self._status()

    @endpoint
    async def close(self) -> None:
        """Unmount."""
        await self._close()

    async def __cleanup__(self, error: Exception | None) -> None:
        with suppress(MountError):
            await self._close()

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        backend, self._backend = self._backend, None
        _mounted.discard(self)
        if backend is not None:
            if isinstance(backend, FuseBackend):
                asyncio.get_running_loop().remove_reader(backend.view)
            await asyncio.to_thread(backend.close)

    async def _show_all(self, backend: MountBackend, tree: _core.Tree) -> None:
        """Show a tree by a method that requires all files."""
        for tries_left in reversed(range(_TRIES_MAX)):
            await self._fetch_all(tree)
            try:
                return await asyncio.to_thread(backend.show, tree)
            except ChunksMissing as error:
                if not self._is_complete:
                    raise MountError(f"not all files can be fetched: {self._problem}") from error
                # The damaged chunks are missing from the store now, so they are fetched again.
                if tries_left == 0:
                    raise

    async def _fetch_all(self, tree: _core.Tree) -> None:
        """Fetch all available files of a tree."""
        refused = await self._fetch_each(tree.chunks())
        if tree is self._tree:
            self._is_complete = not refused
            self._fetched.set()

    def _on_chunk_requests(self) -> None:
        if isinstance(self._backend, FuseBackend):
            names = self._backend.view.take_requests(BATCH_MAX)
            if names:
                in_background(self._fetch_requested(names), self._tasks)

    async def _fetch_requested(self, names: bytes) -> None:
        """Fetch chunks that reads wait for. Reads that also wait for other chunks keep waiting."""
        try:
            refused = await self._ensure(names, is_urgent=True)
        except Exception as error:
            refused = dict.fromkeys(split(names), str(error))
        if isinstance(self._backend, FuseBackend):
            there = joined(name for name in split(names) if name not in refused)
            self._backend.view.arrived(there)
            self._backend.view.refuse(joined(refused))

    def _on_arrival(self, names: bytes) -> None:
        backend = self._backend
        if isinstance(backend, FuseBackend):
            backend.view.arrived(names)

    async def _status(self) -> HostStatus:
        return await asyncio.to_thread(self.current_status)

    def current_status(self) -> HostStatus:
        """Return the status of the mount; callable from any thread."""
        tree, backend = self._tree, self._backend
        assert tree is not None, "this is called only after a tree is shown"
        cached, *_ = self._store.usage()
        _, files, _, total = tree.totals()
        here = total if self._is_complete else self._here_bytes(tree)
        return HostStatus(
            host=socket.gethostname(),
            mountpoint="" if backend is None else backend.mountpoint,
            backend="" if backend is None else backend.name,
            why="" if backend is None else backend.why,
            is_complete=self._is_complete,
            is_open=backend is not None and backend.is_open,
            files=files,
            total_bytes=total,
            here_bytes=here,
            fetched_bytes=0 if self._fetcher is None else self._fetcher.fetched_bytes,
            cached_bytes=cached,
            problem=self._problem,
        )

    def _here_bytes(self, tree: _core.Tree) -> int:
        names = tree.chunks()
        *_, total = tree.totals()
        missing = len(self._store.missing(names))
        return total if not missing else total * (len(names) - missing) // len(names)


def local_statuses() -> list[HostStatus]:
    """Return the status of each mount of this process."""
    return [files.current_status() for files in list(_mounted)]
