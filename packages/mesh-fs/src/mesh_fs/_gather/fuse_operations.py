"""Directories of hosts as one file system that answers the kernel's requests."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import stat
import time
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import pyfuse3  # pyright: ignore[reportMissingImports]

from mesh_fs._gather.cache_invalidation import CacheInvalidator
from mesh_fs._gather.file_content import FileContent, OpenFile
from mesh_fs._gather.inode_table import ROOT, Inode, InodeTable
from mesh_fs._gather.listings import Listing, Listings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from mesh_fs._gather.host_client import HostClient
    from mesh_fs._gather.messages import FileChanges, FileStatus
    from mesh_fs._options import GatherOptions

__all__ = ["FuseOperations"]

F = TypeVar("F", bound="Callable[..., Coroutine[Any, Any, Any]]")

_FOLDER_MODE = stat.S_IFDIR | 0o555
_WRITE = 0o222
_BLOCK_BYTES = 4096
_NAME_MAX = 255
#: How long an open waits for the kernel to drop its cached data of the file.
_INVALIDATE_TIMEOUT_S = 1.0

_logger = logging.getLogger("mesh_fs")


def _with_errno(handler: F) -> F:
    """Convert every error to an error number for the kernel."""

    @functools.wraps(handler)
    async def wrapper(*args: Any) -> Any:
        try:
            return await handler(*args)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None
        except pyfuse3.FUSEError:
            raise
        except Exception:
            _logger.exception("%s failed", handler.__name__)
            raise pyfuse3.FUSEError(errno.EIO) from None

    return wrapper  # type: ignore[return-value]


class FuseOperations:
    """Answers the kernel; the names of its methods are those of `pyfuse3.Operations`.

    Args:
        clients: The clients of the hosts.
        is_direct: Show the directory of the only host directly, instead of a folder for each host.
        options: Cache sizes, cache lifetimes, and timeouts.
    """

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self, clients: list[HostClient], options: GatherOptions, *, is_direct: bool
    ) -> None:
        self._options = options
        self.clients = clients
        self._inodes = InodeTable(clients, is_direct=is_direct)
        self._content = FileContent(options, self._update_status)
        self._listings = Listings(options.attributes_ttl_s)
        self._invalidator = CacheInvalidator(pyfuse3)
        self._open_files: dict[int, OpenFile] = {}
        self._folders: dict[int, Listing | None] = {}
        self._open_folders: dict[int, Inode] = {}
        self._handles = count(1)
        self._started_ns = time.time_ns()
        self._owner = os.getuid(), os.getgid()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        """Refuse all operations that a read-only file system need not implement."""
        if name.startswith("_"):
            raise AttributeError(name)

        async def refuse(*_: object) -> None:
            raise pyfuse3.FUSEError(errno.ENOSYS)

        return refuse

    def init(self) -> None:
        """Do nothing; called before any other operation."""

    def stacktrace(self) -> None:
        """Do nothing; pyfuse3 calls it for debugging."""

    @_with_errno
    async def lookup(self, parent: int, name: bytes, context: object) -> Any:
        """Look up a name in a directory."""
        folder = self._inodes[parent]
        if folder.client is None:
            node = self._inodes.hosts.get(name)
            if node is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            await self._refresh_host(node)
        else:
            path, requested_s = folder.under(name), self._now()
            node = self._node(
                folder.client, path, await folder.client.stat(path, None), requested_s
            )
        node.lookups += 1
        return self._entry(node)

    async def forget(self, forgotten: Sequence[tuple[int, int]]) -> None:
        """Process a notification that the kernel has forgotten files."""
        for number, lookups in forgotten:
            node = self._inodes.forget(number, lookups)
            if node is not None:
                self._content.drop(node)
                self._listings.drop(node)

    @_with_errno
    async def getattr(self, number: int, context: object) -> Any:
        """Return the attributes of a file."""
        node = self._inodes[number]
        await self._refresh(node)
        return self._entry(node)

    @_with_errno
    async def readlink(self, number: int, context: object) -> bytes:
        """Return the target of a symbolic link, as on the host."""
        node = self._inodes[number]
        assert node.client is not None, "the top is no symlink"
        return await node.client.target(node.path)

    @_with_errno
    async def opendir(self, number: int, context: object) -> int:
        """Open a directory."""
        node = self._inodes[number]
        handle = next(self._handles)
        listing = None if node.client is None else self._listings.of(node)
        if listing is not None:
            await listing.at(0)
        self._folders[handle] = listing
        self._open_folders[handle] = node
        return handle

    @_with_errno
    async def readdir(self, handle: int, start: int, token: Any) -> None:
        """List a directory with attributes, until the reply is full."""
        folder, listing = self._open_folders[handle], self._folders[handle]
        if listing is None:
            await self._list_hosts(start, token)
            return
        assert folder.client is not None, "the top has no listing"
        if start == 0:
            # A reader that starts again must see the current content.
            listing = self._folders[handle] = self._listings.of(folder)
        while (found := await listing.at(start)) is not None:
            name, status, requested_s = found
            start += 1
            node = self._node(folder.client, folder.under(name), status, requested_s)
            if not pyfuse3.readdir_reply(token, name, self._entry(node), start):
                break
            node.lookups += 1

    @_with_errno
    async def releasedir(self, handle: int) -> None:
        """Close a directory."""
        del self._folders[handle], self._open_folders[handle]

    @_with_errno
    async def open(self, number: int, flags: int, context: object) -> Any:
        """Open a file."""
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        node = self._inodes[number]
        assert node.client is not None, "the top is no file"
        assert node.status is not None, "it was looked up"
        requested_s = self._now()
        # Every open queries the host, so that it shows the current state of the file. If the file
        # was replaced, the kernel repeats the lookup.
        self._update_status(node, await node.client.open(node.path, node.status.file), requested_s)
        if node.untrusted_from_s is not None:
            self._drop_content(node)
            node.kernel_status = None
        await self._invalidate_outdated(node)
        handle = next(self._handles)
        self._open_files[handle] = OpenFile(node)
        node.opened += 1
        # The kernel's cache is always invalidated explicitly when it is outdated.
        return pyfuse3.FileInfo(fh=handle, keep_cache=True)

    @_with_errno
    async def read(self, handle: int, offset: int, size: int) -> bytes | memoryview:
        """Read from a file."""
        try:
            async with asyncio.timeout(self._options.read_limit_s):
                return await self._content.read(self._open_files[handle], offset, size)
        except TimeoutError:
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from None

    @_with_errno
    async def flush(self, handle: int) -> None:
        """Do nothing, because the file system is read-only."""

    @_with_errno
    async def release(self, handle: int) -> None:
        """Close a file."""
        node = self._open_files.pop(handle).node
        node.opened -= 1
        if not node.opened and node.client is not None and node.status is not None:
            node.client.release(node.path, node.status.file)

    @_with_errno
    async def statfs(self, context: object) -> Any:
        """Return the total usage of the file systems of all hosts."""
        living = [client for client in self.clients if client.lost is None]
        requests = (client.space() for client in living)
        replies = await asyncio.gather(*requests, return_exceptions=True)
        spaces = [reply for reply in replies if not isinstance(reply, BaseException)]
        whole = pyfuse3.StatvfsData()
        whole.f_bsize = whole.f_frsize = _BLOCK_BYTES
        whole.f_blocks = sum(space.total for space in spaces) // _BLOCK_BYTES
        whole.f_bfree = sum(space.free for space in spaces) // _BLOCK_BYTES
        whole.f_bavail = sum(space.available for space in spaces) // _BLOCK_BYTES
        whole.f_files = sum(space.files for space in spaces)
        whole.f_ffree = whole.f_favail = sum(space.files_free for space in spaces)
        whole.f_namemax = min((space.name_max for space in spaces), default=_NAME_MAX)
        return whole

    def on_changes(self, client: HostClient, changes: FileChanges) -> None:
        """Invalidate the cached data, here and in the kernel, that a host reports as changed."""
        if changes.is_all:
            self._listings.clear()
            for node in self._inodes:
                if node.client is client:
                    self._mark_outdated(node)
            return
        for path in changes.files | changes.names:
            known = self._inodes.at(client, path)
            if known is not None:
                self._mark_outdated(known)
        for path in changes.files:
            # The listing contains its attributes.
            self._drop_listing(client, path)
        for path in changes.names:
            parent = self._drop_listing(client, path)
            if parent is not None:
                self._mark_outdated(parent)
                self._invalidator.name(parent.number, path.rpartition(b"/")[2])

    def on_lost(self, client: HostClient) -> None:
        """Invalidate all data of a host in the kernel."""
        for node in self._inodes:
            if node.client is client:
                self._mark_outdated(node)
        if self._inodes.top.client is None:
            self._invalidator.name(ROOT, client.name)

    @property
    def cached_bytes(self) -> int:
        """The size of the cached file content, in bytes."""
        return self._content.cached_bytes

    async def close(self) -> None:
        """Cancel waiting requests, and stop notifying the kernel."""
        for client in self.clients:
            client.close()
        await self._content.close()
        await self._invalidator.close()

    async def _list_hosts(self, start: int, token: Any) -> None:
        for place, node in list(enumerate(self._inodes.hosts.values(), 1))[start:]:
            await self._refresh_host(node)
            assert node.client is not None, "it is the folder of a host"
            if not pyfuse3.readdir_reply(token, node.client.name, self._entry(node), place):
                break
            node.lookups += 1

    async def _refresh(self, node: Inode) -> None:
        """Fetch the attributes again if they may be outdated."""
        if node.client is None or node.fresh_until_s > self._now():
            return
        if node.is_host:
            await self._refresh_host(node)
            return
        file = None if node.status is None else node.status.file
        requested_s = self._now()
        self._update_status(node, await node.client.stat(node.path, file), requested_s)

    async def _refresh_host(self, node: Inode) -> None:
        """Like `_refresh`, for the folder of a host, which exists even if the host is lost."""
        assert node.client is not None, "it is the folder of a host"
        requested_s = self._now()
        if node.fresh_until_s > requested_s:
            return
        try:
            self._update_status(node, await node.client.stat(b"", None), requested_s)
        except OSError:
            node.status = None
            node.fresh_until_s = self._now() + self._options.attributes_ttl_s

    def _node(
        self, client: HostClient, path: bytes, status: FileStatus, requested_s: float
    ) -> Inode:
        node = self._inodes.of(client, path, status)
        self._update_status(node, status, requested_s)
        return node

    def _update_status(self, node: Inode, status: FileStatus, requested_s: float) -> None:
        """Process a status that a host has reported."""
        if node.status is not None and requested_s < node.requested_s:
            return  # A later status is already known.
        before, node.status = node.status, status
        node.requested_s = requested_s
        node.fresh_until_s = requested_s + self._options.attributes_ttl_s
        is_new = before is not None and before.version != status.version
        if is_new or (node.untrusted_from_s is not None and node.untrusted_from_s <= self._now()):
            self._drop_content(node)

    def _mark_outdated(self, node: Inode) -> None:
        """Mark a file as outdated, so that the next use checks it."""
        node.fresh_until_s = 0.0
        self._drop_content(node)
        if not node.is_read:
            self._invalidator.content(node.number)

    def _drop_content(self, node: Inode) -> None:
        self._content.drop(node)
        if node.is_read:
            self._invalidator.content(node.number)

    async def _invalidate_outdated(self, node: Inode) -> None:
        """Let the kernel drop outdated data of a file before it is read."""
        if (
            node.kernel_status is None
            or node.status is None
            or node.kernel_status.version != node.status.version
        ):
            notice = self._invalidator.content(node.number)
            if notice is not None:
                # This may block on other reads of a host that does not respond.
                await asyncio.wait([asyncio.wrap_future(notice)], timeout=_INVALIDATE_TIMEOUT_S)

    def _drop_listing(self, client: HostClient, path: bytes) -> Inode | None:
        """Discard the listing of the directory that contains a path; return that directory."""
        if not path:
            return None
        parent = self._inodes.at(client, path.rpartition(b"/")[0])
        if parent is not None:
            self._listings.drop(parent)
        return parent

    def _entry(self, node: Inode) -> Any:
        """Return attributes in the form that the kernel expects."""
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = node.number
        left_s = max(0.0, node.fresh_until_s - self._now())
        entry.entry_timeout = entry.attr_timeout = left_s
        entry.st_uid, entry.st_gid = self._owner
        entry.st_blksize = _BLOCK_BYTES
        status = node.kernel_status = node.status
        if status is None:
            entry.entry_timeout = entry.attr_timeout = self._options.attributes_ttl_s
            entry.st_mode, entry.st_nlink = _FOLDER_MODE, 2
            entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = self._started_ns
            return entry
        entry.st_mode, entry.st_nlink = status.mode & ~_WRITE, status.links
        entry.st_size, entry.st_blocks, entry.st_rdev = status.size, status.blocks, status.special
        entry.st_atime_ns = status.accessed_ns
        entry.st_mtime_ns, entry.st_ctime_ns = status.modified_ns, status.changed_ns
        return entry

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
