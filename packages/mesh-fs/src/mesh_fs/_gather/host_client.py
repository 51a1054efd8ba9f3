"""One host, as the client sees it: asked with a deadline, and lost for good when it dies."""

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

#: What is cached, and fetched at least.
BLOCK_BYTES = 128 << 10
#: What is fetched at once at most.
FETCH_BLOCKS_MAX = SLOT_BYTES // BLOCK_BYTES
#: As many bytes as this do not come in the message any more.
_LARGE_BYTES = 256 << 10
#: How many questions are under way to one host.
_QUESTIONS_MAX = 256

_logger = logging.getLogger("mesh_fs")


class _Window:
    """Memory of a host that this process reads, and its own to read it into."""

    def __init__(self, theirs: RDMABuffer) -> None:
        self.theirs = theirs
        self.slots = Slots()
        self.memory = allocate(len(theirs))


class HostClient:
    """Asks one host for files.

    What it asks for raises `OSError` with the host's number of the error, or EIO if the host is
    lost, or does not answer in time.

    Args:
        rank: The host's place.
        name: What its folder is called.
        folder: Who answers there.
        reader: What this process is called by it.
        limit_s: How long it may take to answer.
    """

    def __init__(
        self, rank: int, name: bytes, folder: SharedFolder, reader: str, limit_s: float
    ) -> None:
        self.rank = rank
        self.name = name
        #: Why nobody answers any more.
        self.lost: str | None = None
        self._folder = folder
        self._reader = reader
        self._limit_s = limit_s
        self._called = os.fsdecode(name) or "the host"
        self._room = asyncio.Semaphore(_QUESTIONS_MAX)
        self._joining: asyncio.Future[_Window] | None = None
        self._limits: set[asyncio.Timeout] = set()
        self._stat = folder.stat.options(timeout=limit_s)
        self._open = folder.open.options(timeout=limit_s)
        self._target = folder.target.options(timeout=limit_s)
        self._page = folder.page.options(timeout=limit_s)
        self._read = folder.read.options(timeout=limit_s)
        self._space = folder.space.options(timeout=limit_s)

    async def stat(self, path: bytes, file: tuple[int, int] | None) -> FileStatus:
        """Looks at a path; at a certain file if one is named."""
        return await self._ask(lambda: self._stat.call_one(path, file))

    async def open(self, path: bytes, file: tuple[int, int]) -> FileStatus:
        """Has a file be open there; raises ESTALE if another one has its name by now."""
        return await self._ask(lambda: self._open.call_one(path, file))

    async def target(self, path: bytes) -> bytes:
        """Reads a symlink."""
        return await self._ask(lambda: self._target.call_one(path))

    async def page(self, path: bytes, after: bytes) -> DirectoryPage:
        """Lists a part of a directory."""
        return await self._ask(lambda: self._page.call_one(path, after))

    async def space(self) -> FileSystemUsage:
        """Says how full the file system is."""
        return await self._ask(self._space.call_one)

    async def blocks(
        self, path: bytes, file: tuple[int, int], first: int, count: int, *, is_urgent: bool
    ) -> tuple[ReadResult, list[bytes]]:
        """Reads blocks of a file; there are fewer where it ends.

        It may take longer than anybody waits: the memory that it goes through is the host's until
        that has answered.
        """
        offset, length = first * BLOCK_BYTES, count * BLOCK_BYTES
        if length < _LARGE_BYTES:
            result = await self._ask(lambda: self._read.call_one(path, file, offset, length))
            return result, [result.content] if result.content else []
        window = await self._joined()
        slot = await window.slots.take(is_urgent=is_urgent)
        try:
            result = await self._ask(
                lambda: self._folder.fill.call_one(self._reader, slot, path, file, offset, length),
                is_limited=False,
            )
            start = slot * SLOT_BYTES
            memory = window.memory[start : start + result.length]
            if result.length:
                copied = window.theirs.read_into(
                    memory, offset=start, length=result.length, timeout=self._limit_s
                )
                await self._guarded(copied)
            return result, [
                bytes(memory[at : at + BLOCK_BYTES]) for at in range(0, result.length, BLOCK_BYTES)
            ]
        finally:
            await window.slots.give(slot)

    def release(self, path: bytes, file: tuple[int, int]) -> None:
        """Says that a file is not open here any more."""
        if self.lost is None:
            try:
                self._folder.release.broadcast(path, file)
            except MeshError as error:
                # It closes those that were not read for longest by itself.
                _logger.debug("%s was not told of a closed file: %s", self._called, error)

    async def changes(self) -> FileChanges:
        """Waits until something has changed on the host, however long."""
        call = self._folder.changes.call_one()
        try:
            return await self._guarded(call)
        finally:
            # A host that is waited for would not end at once.
            call.cancel()

    def close(self) -> None:
        """Sends away who waits for the host, and asks it nothing any more."""
        self.lost = self.lost or "it is closed"
        now_s = asyncio.get_running_loop().time()
        for limit in self._limits:
            limit.reschedule(now_s)

    async def _joined(self) -> _Window:
        """Gives the window, agreed upon once however many ask."""
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
        return _Window(await self._ask(lambda: self._folder.join.call_one(self._reader)))

    async def _ask(self, begin: Callable[[], Awaitable[T | int]], *, is_limited: bool = True) -> T:
        self._check()
        limit = asyncio.timeout(self._limit_s if is_limited else None)
        self._limits.add(limit)
        try:
            async with limit, self._room:
                self._check()
                answer = await self._guarded(begin())
        except TimeoutError as error:
            raise _failed() from error
        finally:
            self._limits.discard(limit)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    async def _guarded(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except SupervisionError as error:
            self._lose(error)
            raise _failed() from error
        except MeshError as error:
            _logger.warning("%s: %s", self._called, error)
            raise _failed() from error

    def _check(self) -> None:
        if self.lost is not None:
            raise _failed()

    def _lose(self, error: SupervisionError) -> None:
        if self.lost is None:
            self.lost = str(error)
            _logger.warning("%s shows nothing any more: %s", self._called, error)


def _failed() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))
