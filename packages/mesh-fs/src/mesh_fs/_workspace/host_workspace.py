"""A host's side of a workspace: a directory that is written to be as that of the client."""

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
#: How often is written what others change at the same time.
_TRIES_MAX = 3


@dataclass(frozen=True)
class HostSync:
    """What a sync has changed on one host.

    Attributes:
        host: The machine's name.
        directory: Where the files are.
        is_origin: Whether that is the client's own directory, in which nothing is written.
        written: Files and links that were made or replaced.
        removed: Files and links that an earlier sync had written, and the client has no more.
        overwritten: Those among both that were made or changed on the host meanwhile.
        written_bytes: The content of the files that were written.
        fetched_bytes: What came over the network for that, or from other processes.
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
    """Writes trees into one directory of its host, and gives chunks of them to others.

    Args:
        remote: The directory; the one that `$WORKSPACE_DIR` names on the host if left out.
        otherwise: The directory where neither is given.
        cache: Where the host keeps chunks.
    """

    def __init__(self, remote: str | None, otherwise: str, cache: CacheOptions) -> None:
        super().__init__(cache)
        named = remote or os.environ.get(_VARIABLE) or otherwise
        self._directory = with_subdirectory(named, current_rank())
        self._turn = asyncio.Lock()

    @endpoint
    async def directory(self) -> str:
        """Says where it writes."""
        return self._directory

    @concurrent_endpoint
    async def sync(self, recipe: bytes, identity: DirectoryIdentity) -> HostSync:
        """Writes what is not as in a tree, and removes what is not in it any more.

        Raises:
            WorkspaceError: The directory cannot be written, or is inside that of the client.
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
                raise WorkspaceError(f"{len(refused)} chunks cannot be had, as {why}: sync again")
            try:
                return await asyncio.to_thread(workspace.update, tree, self._store)
            except WorkspaceError:
                # Somebody may have changed a file between both, so that it is needed too.
                needed = await asyncio.to_thread(workspace.needed, tree)
                if not tries_left or not self._store.missing(needed):
                    raise

    def _check(self, identity: DirectoryIdentity) -> None:
        if not os.path.isabs(self._directory):
            raise WorkspaceError(f"{self._directory!r} is a relative path: give the whole path")
        for ancestor in Path(os.path.realpath(self._directory)).parents:
            if identity.is_at(ancestor):
                raise WorkspaceError(
                    f"{self._directory!r} is inside the workspace itself: sync to another place"
                )
