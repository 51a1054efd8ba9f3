"""The host side of a workspace: a directory that is kept equal to the client's."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_core import concurrent_endpoint, current_rank, endpoint
from mesh_fs import _core
from mesh_fs._delivery.relay import Relay
from mesh_fs._errors import WorkspaceError
from mesh_fs._subdirectory import with_subdirectory

if TYPE_CHECKING:
    from mesh_fs._options import CacheOptions
    from mesh_fs._workspace.directory_identity import DirectoryIdentity

__all__ = ["HostSync", "HostWorkspace"]

_VARIABLE = "WORKSPACE_DIR"
#: The maximum number of attempts if other processes change files concurrently.
_TRIES_MAX = 3


@dataclass(frozen=True)
class HostSync:
    """The changes of a sync on one host.

    Attributes:
        host: The name of the machine.
        directory: The directory on the host.
        is_origin: Whether it is the client's own directory, to which nothing is written.
        written: The number of files and links that were created or replaced.
        removed: The number of files and links that an earlier sync had written and that no longer
            exist on the client.
        overwritten: How many of these had been created or changed on the host since the last sync.
        written_bytes: The size of the files that were written.
        fetched_bytes: The number of bytes received for this, over the network or from other
            processes.
    """

    host: str
    directory: str
    is_origin: bool = False
    written: int = 0
    removed: int = 0
    overwritten: int = 0
    written_bytes: int = 0
    fetched_bytes: int = 0


class HostWorkspace(Relay):
    """Writes trees into a directory of its host, and provides their chunks to other hosts.

    Args:
        remote: The directory. Default: `$WORKSPACE_DIR` of the host.
        otherwise: The directory if neither is set.
        cache: The location and size limit of the chunks on the host.
    """

    def __init__(self, remote: str | None, otherwise: str, cache: CacheOptions) -> None:
        super().__init__(cache)
        named = remote or os.environ.get(_VARIABLE) or otherwise
        self._directory = with_subdirectory(named, current_rank())
        self._turn = asyncio.Lock()

    @endpoint
    async def directory(self) -> str:
        """Return the directory."""
        return self._directory

    @concurrent_endpoint
    async def sync(self, recipe: bytes, identity: DirectoryIdentity) -> HostSync:
        """Write the differences from a tree, and remove files that are no longer in the tree.

        Raises:
            WorkspaceError: The directory cannot be written, or is inside the client's directory.
            SnapshotError: The tree cannot be fetched.
        """
        async with self._turn:
            if await asyncio.to_thread(identity.is_at, self._directory):
                return HostSync(socket.gethostname(), self._directory, is_origin=True)
            await asyncio.to_thread(self._check, identity)
            assert self._fetcher is not None, "set_providers is called first"
            before = self._fetcher.fetched_bytes
            tree = await self._fetch_tree(recipe)
            counts = await self._write(tree)
            fetched = self._fetcher.fetched_bytes - before
            written, removed, overwritten, written_bytes = counts
            return HostSync(
                socket.gethostname(),
                self._directory,
                written=written,
                removed=removed,
                overwritten=overwritten,
                written_bytes=written_bytes,
                fetched_bytes=fetched,
            )

    async def _write(self, tree: _core.Tree) -> tuple[int, int, int, int]:
        workspace = await asyncio.to_thread(_core.Workspace, self._directory)
        tries_left = _TRIES_MAX
        while True:
            tries_left -= 1
            needed = await asyncio.to_thread(workspace.needed, tree)
            refused = await self._fetch_each(needed)
            if refused:
                why = next(iter(refused.values()))
                raise WorkspaceError(f"{len(refused)} chunks cannot be fetched ({why}): sync again")
            try:
                return await asyncio.to_thread(workspace.update, tree, self._store)
            except WorkspaceError:
                # Another process may have changed a file since, so that more chunks are needed.
                needed = await asyncio.to_thread(workspace.needed, tree)
                if not tries_left or not self._store.missing(needed):
                    raise

    def _check(self, identity: DirectoryIdentity) -> None:
        if not os.path.isabs(self._directory):
            raise WorkspaceError(f"{self._directory!r} is a relative path: give the absolute path")
        for ancestor in Path(os.path.realpath(self._directory)).parents:
            if identity.is_at(ancestor):
                raise WorkspaceError(
                    f"{self._directory!r} is inside the workspace itself: sync to another directory"
                )
