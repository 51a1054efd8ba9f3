"""The host side of a gathered mount: serves the client's requests for one directory."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from mesh_core import Actor, concurrent_endpoint, current_rank, endpoint
from mesh_fs._delivery.window import Windows
from mesh_fs._errors import MountError
from mesh_fs._gather.file_watches import FileWatches
from mesh_fs._gather.messages import (
    DirectoryPage,
    FileChanges,
    FileStatus,
    FileSystemUsage,
    ReadResult,
)
from mesh_fs._gather.open_file_cache import OpenFileCache
from mesh_fs._gather.safe_path import folder_of, opened
from mesh_fs._subdirectory import with_subdirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_rdma import RDMABuffer

__all__ = ["SharedFolder", "machine"]

T = TypeVar("T")

#: The number of threads for system calls that may block on a disk.
_THREADS = 8
#: The maximum number of directory entries in one message.
_PAGE_MAX = 2048
_OPEN_MAX = 256
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class SharedFolder(Actor):
    """Serves one directory.

    System errors are returned as error numbers and not raised, because they are not failures of the
    actor.

    Args:
        root: The directory. `$SUBDIR` is replaced by the host's position in the mesh.
        watches_max: The maximum number of files that are watched.
    """

    def __init__(self, root: str, watches_max: int) -> None:
        self._root = with_subdirectory(root, current_rank())
        self._watches_max = watches_max
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="mesh-gather")
        self._open = OpenFileCache(self._root, _OPEN_MAX)
        self._windows = Windows()
        self._watches: FileWatches | None = None
        # The names of the directory that was listed last, for its remaining pages.
        self._listed: tuple[tuple[int, ...], list[bytes]] | None = None

    @endpoint
    async def begin(self, client: str, mountpoint: str) -> None:
        """Check that the directory can be mounted at the mountpoint.

        Raises:
            MountError: The directory contains the mountpoint.
        """
        self._watches = FileWatches(self._watches_max)
        root = await asyncio.to_thread(os.path.realpath, self._root)
        if machine() == client and os.path.commonpath((root, mountpoint)) == root:
            raise MountError(
                f"{mountpoint!r} is inside {root!r}, the directory to be shown there: choose "
                "another mountpoint"
            )

    @concurrent_endpoint
    async def stat(self, path: bytes, file: tuple[int, int] | None) -> FileStatus | int:
        """Return the status of a path, or of a particular file, even if it has been replaced."""
        return await self._run(lambda: self._stat(path, file))

    @concurrent_endpoint
    async def open(self, path: bytes, file: tuple[int, int]) -> FileStatus | int:
        """Open a file; return ESTALE if the path now refers to another file."""

        def look() -> FileStatus:
            try:
                with self._open.use(path, file) as descriptor:
                    self._watch(path, descriptor, is_folder=False)
                    return FileStatus.of(os.fstat(descriptor))
            except FileNotFoundError as error:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path) from error

        return await self._run(look)

    @concurrent_endpoint
    async def target(self, path: bytes) -> bytes | int:
        """Return the target of a symbolic link."""

        def read() -> bytes:
            with folder_of(self._root, path) as (folder, name):
                return os.readlink(name, dir_fd=folder)

        return await self._run(read)

    @concurrent_endpoint
    async def page(self, path: bytes, after: bytes) -> DirectoryPage | int:
        """List the entries of a directory after a name, with their attributes."""
        return await self._run(lambda: self._page(path, after))

    @concurrent_endpoint
    async def read(
        self, path: bytes, file: tuple[int, int], offset: int, length: int
    ) -> ReadResult | int:
        """Read bytes of a file, and return them in the reply."""

        def read() -> ReadResult:
            content = b""

            def take(descriptor: int) -> int:
                nonlocal content
                content = os.pread(descriptor, length, offset)
                return len(content)

            result = self._read(path, file, take)
            return result._replace(content=content)

        return await self._run(read)

    @concurrent_endpoint
    async def join(self, reader: str) -> RDMABuffer:
        """Return the window of the client."""
        return self._windows.open(reader)

    @concurrent_endpoint
    async def fill(
        self, reader: str, slot: int, path: bytes, file: tuple[int, int], offset: int, length: int
    ) -> ReadResult | int:
        """Read bytes of a file into a slot of the window."""

        def put(memory: memoryview) -> ReadResult:
            return self._read(path, file, lambda at: _read_all(at, memory[:length], offset))

        try:
            return await self._windows.fill(reader, slot, put)
        except OSError as error:
            return error.errno or errno.EIO

    @concurrent_endpoint
    async def release(self, path: bytes, file: tuple[int, int]) -> None:
        """Process a notification that the client no longer has a file open."""
        self._open.release(path, file)

    @concurrent_endpoint
    async def space(self) -> FileSystemUsage | int:
        """Return the usage of the file system."""

        def look() -> FileSystemUsage:
            found = os.statvfs(self._root)
            unit = found.f_frsize
            return FileSystemUsage(
                found.f_blocks * unit,
                found.f_bfree * unit,
                found.f_bavail * unit,
                found.f_files,
                found.f_ffree,
                found.f_namemax,
            )

        return await self._run(look)

    @concurrent_endpoint
    async def changes(self) -> FileChanges:
        """Wait until a recently requested file has changed."""
        assert self._watches is not None, "it has begun"
        return await self._watches.changes()

    async def __cleanup__(self, error: Exception | None) -> None:
        if self._watches is not None:
            self._watches.close()
        # Do not wait for threads, which may be blocked on a disk that does not respond.
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._open.close()

    async def _run(self, work: Callable[[], T]) -> T | int:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            return error.errno or errno.EIO

    def _stat(self, path: bytes, file: tuple[int, int] | None) -> FileStatus:
        if not path:
            return FileStatus.of(os.stat(self._root))
        try:
            status = self._lstat(path)
        except OSError:
            if file is None:
                raise
            status = None
        if status is not None and (file is None or status.file == file):
            return status
        assert file is not None, "nobody asks for a certain file"
        with self._open.use_known(path, file) as descriptor:
            if descriptor is not None:
                return FileStatus.of(os.fstat(descriptor))
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    def _lstat(self, path: bytes) -> FileStatus:
        with folder_of(self._root, path) as (folder, name):
            # Watch the directory, so that the creation of a missing file is reported, too.
            self._watch(path.rpartition(b"/")[0], folder, is_folder=True)
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                if stat.S_ISREG(os.fstat(found).st_mode):
                    self._watch(path, found, is_folder=False)
                return FileStatus.of(os.fstat(found))
            finally:
                os.close(found)

    def _page(self, path: bytes, after: bytes) -> DirectoryPage:
        with opened(self._root, path, os.O_RDONLY | os.O_DIRECTORY) as folder:
            if not after:
                self._watch(path, folder, is_folder=True)
            names = self._names(folder, is_new=not after)
            start = bisect_right(names, after) if after else 0
            chosen = names[start : start + _PAGE_MAX]
            entries = []
            for name in chosen:
                try:
                    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # It was removed after the listing.
                entries.append((name, FileStatus.of(found)))
            return DirectoryPage(entries, start + len(chosen) == len(names))

    def _names(self, folder: int, *, is_new: bool) -> list[bytes]:
        version = FileStatus.of(os.fstat(folder)).version
        listed = self._listed
        if not is_new and listed is not None and listed[0] == version:
            return listed[1]
        names = sorted(os.fsencode(name) for name in os.listdir(folder))
        self._listed = version, names
        return names

    def _read(self, path: bytes, file: tuple[int, int], take: Callable[[int], int]) -> ReadResult:
        with self._open.use(path, file) as descriptor:
            self._watch(path, descriptor, is_folder=False)
            before = FileStatus.of(os.fstat(descriptor))
            count = take(descriptor)
            status = FileStatus.of(os.fstat(descriptor))
            return ReadResult(status, before.version == status.version, count, b"")

    def _watch(self, path: bytes, descriptor: int, *, is_folder: bool) -> None:
        assert self._watches is not None, "it has begun"
        self._watches.add(path, descriptor, is_folder=is_folder)


def machine() -> str:
    """Return an identifier shared by processes for which the same path is the same file."""
    with open(_BOOT_ID) as data:
        boot = data.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/mnt').st_ino}"


def _read_all(descriptor: int, memory: memoryview, offset: int) -> int:
    """Fill memory from a file; return the number of bytes read."""
    count = 0
    while count < len(memory):
        read = os.preadv(descriptor, [memory[count:]], offset + count)
        if not read:
            break
        count += read
    return count
