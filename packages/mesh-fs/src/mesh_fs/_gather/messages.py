"""What a host says of the files that it shows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import os

__all__ = ["DirectoryPage", "FileChanges", "FileStatus", "FileSystemUsage", "ReadResult"]

#: A file that was changed so recently may change again without a difference in its times.
_SETTLED_NS = 2_000_000_000


class FileStatus(NamedTuple):
    """A file at one moment.

    Attributes:
        device: The number of its file system.
        inode: Its number there.
        mode: Its kind and permissions.
        links: How many names it has.
        size: Its length in bytes.
        blocks: How many blocks of 512 bytes it takes.
        special: Which device it is, if it is one.
        accessed_ns: When it was read.
        modified_ns: When its content was changed.
        changed_ns: When it itself was changed.
        is_settled: Whether any change from now on changes its times.
    """

    device: int
    inode: int
    mode: int
    links: int
    size: int
    blocks: int
    special: int
    accessed_ns: int
    modified_ns: int
    changed_ns: int
    is_settled: bool

    @classmethod
    def of(cls, stat: os.stat_result) -> FileStatus:
        """Takes what the system says."""
        latest = max(stat.st_mtime_ns, stat.st_ctime_ns)
        return cls(
            stat.st_dev,
            stat.st_ino,
            stat.st_mode,
            stat.st_nlink,
            stat.st_size,
            stat.st_blocks,
            stat.st_rdev,
            stat.st_atime_ns,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
            latest + _SETTLED_NS < time.time_ns(),
        )

    @property
    def file(self) -> tuple[int, int]:
        """Which file it is, by whatever name."""
        return self.device, self.inode

    @property
    def version(self) -> tuple[int, ...]:
        """What is another when the content is."""
        return self.device, self.inode, self.size, self.modified_ns, self.changed_ns


class DirectoryPage(NamedTuple):
    """Some of what is in a directory, ordered by name.

    Attributes:
        entries: Names, and what they stand for.
        is_last: Whether nothing comes after them.
    """

    entries: list[tuple[bytes, FileStatus]]
    is_last: bool


class ReadResult(NamedTuple):
    """Bytes of a file.

    Attributes:
        status: The file, after they were read.
        is_whole: Whether it was the same before.
        length: How many there are; fewer than asked for where the file ends.
        content: They themselves, if they are few.
    """

    status: FileStatus
    is_whole: bool
    length: int
    content: bytes


class FileChanges(NamedTuple):
    """What has changed since the last time.

    Attributes:
        files: Paths of files with another content, or other attributes.
        names: Paths that have come, gone, or stand for another file.
        is_all: Whether anything may have changed.
    """

    files: frozenset[bytes]
    names: frozenset[bytes]
    is_all: bool


class FileSystemUsage(NamedTuple):
    """How full a file system is.

    Attributes:
        total: In bytes.
        free: In bytes.
        available: What of it users may take, in bytes.
        files: How many files it can have.
        files_free: How many more.
        name_max: How long a name may be, in bytes.
    """

    total: int
    free: int
    available: int
    files: int
    files_free: int
    name_max: int
