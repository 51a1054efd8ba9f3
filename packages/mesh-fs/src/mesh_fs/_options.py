"""Options of mounts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CacheOptions", "GatherOptions", "MountOptions", "SnapshotOptions"]

_FOLDER_VARIABLE = "MESH_FS_CACHE"
_BACKENDS = ("auto", "fuse", "unpack")


@dataclass(frozen=True)
class SnapshotOptions:
    """Options for taking a snapshot of a directory.

    Attributes:
        ignore: Patterns of files to exclude, in the syntax of `.gitignore`.
        ignore_files: Names of files that contain such patterns, in any directory of the tree.
        cross_file_systems: Include the contents of other file systems that are mounted in the tree;
            otherwise, their mountpoints appear as empty directories.
        skip_unreadable: Omit and list files that cannot be read, instead of failing.
        threads: The number of threads that read and hash files.
        is_cached: Record the chunks of each file that was read, in the folder of `CacheOptions` on
            the client. The next program that uses the directory reads only files whose times, size
            or inode have changed.
    """

    ignore: tuple[str, ...] = ()
    ignore_files: tuple[str, ...] = (".meshignore",)
    cross_file_systems: bool = False
    skip_unreadable: bool = False
    threads: int = min(4, os.cpu_count() or 1)
    is_cached: bool = True


@dataclass(frozen=True)
class CacheOptions:
    """Options for the cache in which hosts keep chunks, and the client keeps its records.

    Attributes:
        folder: The folder on each host and on the client. Default: `$MESH_FS_CACHE`, or a folder in
            the user's cache directory.
        budget_bytes: The size limit. The least recently used data is evicted first.
    """

    folder: str | None = None
    budget_bytes: int = 20 << 30

    def place(self) -> Path:
        """Return the folder on the host on which this is called."""
        if self.folder is not None:
            return Path(self.folder).expanduser()
        if named := os.environ.get(_FOLDER_VARIABLE):
            return Path(named)
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "mesh" / "chunks"


@dataclass(frozen=True)
class MountOptions:
    """Options for showing a tree on a host.

    Attributes:
        backend: The method. `"fuse"` mounts immediately; `"unpack"` writes the files into the
            directory when all have arrived; `"auto"` takes `"fuse"` if the host permits it, and
            otherwise `"unpack"`.
        writable: Let programs on the host write. Their changes are visible only on that host and
            are discarded by `close`. Requires root, except with `"unpack"`.
        allow_other: Let other users read the mount; without root, the host's `/etc/fuse.conf` must
            permit this. It applies only to `"fuse"` without `writable`; otherwise, the modes of the
            files determine access.
        read_limit_s: The time after which a read of a file that has not arrived fails, in seconds.
        read_ahead_bytes: The number of bytes to fetch after the position of a read that had to
            wait.
        is_prefetched: Fetch all files in the background, not only those that are read.
        threads: The number of threads that serve the kernel's requests.
    """

    backend: str = "auto"
    writable: bool = False
    allow_other: bool = False
    read_limit_s: float = 60.0
    read_ahead_bytes: int = 4 << 20
    is_prefetched: bool = True
    threads: int = 4

    def __post_init__(self) -> None:
        if self.backend not in _BACKENDS:
            raise ValueError(f"backend={self.backend!r}: use one of {', '.join(_BACKENDS)}")


@dataclass(frozen=True)
class GatherOptions:
    """Options for showing directories of hosts on the client.

    Attributes:
        attributes_ttl_s: The maximum age of the attributes of a file or directory, in seconds, if
            its host does not notice a change, for example on a network file system. Changes that
            the host notices are shown within milliseconds.
        cache_bytes: The maximum number of file bytes that the client caches for all hosts. The
            least recently read data is evicted first.
        read_ahead_bytes: The maximum number of bytes to fetch ahead of a sequential reader.
        read_limit_s: The time after which an operation that waits for a host fails with EIO, in
            seconds.
        watches_max: The maximum number of files and directories that each host watches for changes.
        allow_other: Let other users read the mount; without root, the client's `/etc/fuse.conf`
            must permit this.
    """

    attributes_ttl_s: float = 1.0
    cache_bytes: int = 256 << 20
    read_ahead_bytes: int = 8 << 20
    read_limit_s: float = 60.0
    watches_max: int = 4096
    allow_other: bool = False

    def __post_init__(self) -> None:
        if not self.read_limit_s > 0:
            raise ValueError(f"read_limit_s={self.read_limit_s}: give more than 0 seconds")
        for name in ("attributes_ttl_s", "cache_bytes", "read_ahead_bytes", "watches_max"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")
