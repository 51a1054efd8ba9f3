"""The client's connection to one host: requests with a deadline; a dead host stays lost."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import TYPE_CHECKING, TypeVar

from mesh_core import MeshError, SupervisionError
from mesh_fs._delivery.window import SLOT_BYTES, Slots
from mesh_rdma import allocate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mesh_fs._gather.messages import (
        DirectoryPage,
        FileChanges,
        FileStatus,
        FileSystemUsage,
        ReadResult,
    )
    from mesh_fs._gather.shared_folder import SharedFolder
    from mesh_rdma import RDMABuffer

__all__ = ["BLOCK_BYTES", "FETCH_BLOCKS_MAX", "HostClient"]

T = TypeVar("T")

#: The size of a cached block, and the minimum size of a fetch.
BLOCK_BYTES = 128 << 10
#: The maximum number of blocks in one fetch.
FETCH_BLOCKS_MAX = SLOT_BYTES // BLOCK_BYTES
#: Reads of at least this size use the window instead of the reply message.
_LARGE_BYTES = 256 << 10
#: The maximum number of pending requests to one host.
_REQUESTS_MAX = 256

_logger = logging.getLogger("mesh_fs")


class _Window:
    """The memory window of a host, and local memory into which it is copied."""

    def __init__(self, remote: RDMABuffer) -> None:
        self.remote = remote
        self.slots = Slots()
        self.memory = allocate(len(remote))


class HostClient:
    """Sends file requests to one host.

    The methods raise `OSError` with the error number of the host, or EIO if the host is lost or
    does not reply in time.

    Args:
        rank: The rank of the host.
        name: The name of its folder.
        folder: The actor that serves requests on the host.
        reader: The name by which the host identifies this process.
        limit_s: The time limit of a request, in seconds.
    """

    def __init__(
        self, rank: int, name: bytes, folder: SharedFolder, reader: str, limit_s: float
    ) -> None:
        self.rank = rank
        self.name = name
        #: The reason why the host does not reply any more.
        self.lost: str | None = None
        self._folder = folder
        self._reader = reader
        self._limit_s = limit_s
        self._label = os.fsdecode(name) or "the host"
        self._request_limit = asyncio.Semaphore(_REQUESTS_MAX)
        self._joining: asyncio.Future[_Window] | None = None
        self._limits: set[asyncio.Timeout] = set()
        self._stat = folder.stat.options(timeout=limit_s)
        self._open = folder.open.options(timeout=limit_s)
        self._target = folder.target.options(timeout=limit_s)
        self._page = folder.page.options(timeout=limit_s)
        self._read = folder.read.options(timeout=limit_s)
        self._space = folder.space.options(timeout=limit_s)

    async def stat(self, path: bytes, file: tuple[int, int] | None) -> FileStatus:
        """Return the status of a path, or of a particular file that had this path."""
        return await self._request(lambda: self._stat.call_one(path, file))

    async def open(self, path: bytes, file: tuple[int, int]) -> FileStatus:
        """Open a file on the host; raise ESTALE if the path now refers to another file."""
        return await self._request(lambda: self._open.call_one(path, file))

    async def target(self, path: bytes) -> bytes:
        """Return the target of a symbolic link."""
        return await self._request(lambda: self._target.call_one(path))

    async def page(self, path: bytes, after: bytes) -> DirectoryPage:
        """List a part of a directory."""
        return await self._request(lambda: self._page.call_one(path, after))

    async def space(self) -> FileSystemUsage:
        """Return the usage of the file system."""
        return await self._request(self._space.call_one)

    async def blocks(
        self, path: bytes, file: tuple[int, int], first: int, count: int, *, is_urgent: bool
    ) -> tuple[ReadResult, list[bytes]]:
        """Read blocks of a file; fewer are returned at its end.

        It may take longer than any caller waits, because the host uses the slot until it has
        replied.
        """
        offset, length = first * BLOCK_BYTES, count * BLOCK_BYTES
        if length < _LARGE_BYTES:
            result = await self._request(lambda: self._read.call_one(path, file, offset, length))
            return result, [result.content] if result.content else []
        window = await self._get_window()
        slot = await window.slots.acquire(is_urgent=is_urgent)
        try:
            result = await self._request(
                lambda: self._folder.fill.call_one(self._reader, slot, path, file, offset, length),
                is_limited=False,
            )
            start = slot * SLOT_BYTES
            memory = window.memory[start : start + result.length]
            if result.length:
                copied = window.remote.read_into(
                    memory, offset=start, length=result.length, timeout=self._limit_s
                )
                await self._checked(copied)
            return result, [
                bytes(memory[at : at + BLOCK_BYTES]) for at in range(0, result.length, BLOCK_BYTES)
            ]
        finally:
            await window.slots.release(slot)

    def release(self, path: bytes, file: tuple[int, int]) -> None:
        """Notify the host that a file is no longer open."""
        if self.lost is None:
            try:
                self._folder.release.broadcast(path, file)
            except MeshError as error:
                # The host closes the least recently read files anyway.
                _logger.debug("%s was not notified of a closed file: %s", self._label, error)

    async def changes(self) -> FileChanges:
        """Wait until something has changed on the host, without a time limit."""
        call = self._folder.changes.call_one()
        try:
            return await self._checked(call)
        finally:
            # A pending call would delay the exit of the host's process.
            call.cancel()

    def close(self) -> None:
        """Cancel waiting requests, and refuse new ones."""
        self.lost = self.lost or "it is closed"
        now_s = asyncio.get_running_loop().time()
        for limit in self._limits:
            limit.reschedule(now_s)

    async def _get_window(self) -> _Window:
        """Return the window, which is opened once for all requests."""
        if self._joining is None:
            self._joining = asyncio.ensure_future(self._join())
        joining = self._joining
        try:
            return await asyncio.shield(joining)
        except OSError:
            if self._joining is joining:
                self._joining = None
            raise

    async def _join(self) -> _Window:
        return _Window(await self._request(lambda: self._folder.join.call_one(self._reader)))

    async def _request(
        self, begin: Callable[[], Awaitable[T | int]], *, is_limited: bool = True
    ) -> T:
        self._check()
        limit = asyncio.timeout(self._limit_s if is_limited else None)
        self._limits.add(limit)
        try:
            async with limit, self._request_limit:
                self._check()
                reply = await self._checked(begin())
        except TimeoutError as error:
            raise _failed() from error
        finally:
            self._limits.discard(limit)
        if isinstance(reply, int):
            raise OSError(reply, os.strerror(reply))
        return reply

    async def _checked(self, reply: Awaitable[T]) -> T:
        try:
            return await reply
        except SupervisionError as error:
            self._lose(error)
            raise _failed() from error
        except MeshError as error:
            _logger.warning("%s: %s", self._label, error)
            raise _failed() from error

    def _check(self) -> None:
        if self.lost is not None:
            raise _failed()

    def _lose(self, error: SupervisionError) -> None:
        if self.lost is None:
            self.lost = str(error)
            _logger.warning("%s is lost, so its files are not shown: %s", self._label, error)


def _failed() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))
