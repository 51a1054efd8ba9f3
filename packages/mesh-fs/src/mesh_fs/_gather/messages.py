"""The messages of hosts about the files that they show."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import os

__all__ = ["DirectoryPage", "FileChanges", "FileStatus", "FileSystemUsage", "ReadResult"]

#: A file that was changed more recently than this may change again without changing its times.
_SETTLED_NS = 2_000_000_000


class FileStatus(NamedTuple):
    """The status of a file at one moment.

    Attributes:
        device: The device number of its file system.
        inode: The inode number.
        mode: The file type and permissions.
        links: The number of hard links.
        size: The size in bytes.
        blocks: The number of allocated blocks of 512 bytes.
        special: The device number of a device file.
        accessed_ns: The time of the last access.
        modified_ns: The time of the last change of the content.
        changed_ns: The time of the last change of the content or attributes.
        is_settled: Whether every later change is certain to change its times.
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
        """Convert a status of the operating system."""
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
        """Identifies the file, regardless of its name."""
        return self.device, self.inode

    @property
    def version(self) -> tuple[int, ...]:
        """Changes whenever the content changes."""
        return self.device, self.inode, self.size, self.modified_ns, self.changed_ns


class DirectoryPage(NamedTuple):
    """A part of a directory, ordered by name.

    Attributes:
        entries: The names, each with its status.
        is_last: Whether the directory has no further entries.
    """

    entries: list[tuple[bytes, FileStatus]]
    is_last: bool


class ReadResult(NamedTuple):
    """Bytes of a file.

    Attributes:
        status: The status of the file after the read.
        is_whole: Whether the file had the same version before the read.
        length: The number of bytes; less than requested at the end of the file.
        content: The bytes themselves, if they are sent in the message.
    """

    status: FileStatus
    is_whole: bool
    length: int
    content: bytes


class FileChanges(NamedTuple):
    """The changes since the previous message.

    Attributes:
        files: The paths of files whose content or attributes have changed.
        names: The paths that were added, removed or replaced.
        is_all: Whether anything may have changed.
    """

    files: frozenset[bytes]
    names: frozenset[bytes]
    is_all: bool


class FileSystemUsage(NamedTuple):
    """The usage of a file system.

    Attributes:
        total: The size, in bytes.
        free: The free space, in bytes.
        available: The space available to ordinary users, in bytes.
        files: The maximum number of files.
        files_free: The number of files that can still be created.
        name_max: The maximum length of a name, in bytes.
    """

    total: int
    free: int
    available: int
    files: int
    files_free: int
    name_max: int
