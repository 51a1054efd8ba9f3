"""What can be chosen for a mount."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CacheOptions", "GatherOptions", "MountOptions", "SnapshotOptions"]

_FOLDER_VARIABLE = "MESH_FS_CACHE"
_WAYS = ("auto", "fuse", "image", "unpack")


@dataclass(frozen=True)
class SnapshotOptions:
    """What of a directory is taken.

    Attributes:
        ignore: Patterns of what is left out, as in a `.gitignore`.
        ignore_files: Names of files with such patterns, in any directory of the tree.
        cross_file_systems: Take what other file systems mounted there hold as well; otherwise
            these are empty directories.
        skip_unreadable: Leave out what may not be read, and list it, rather than fail.
        threads: How many threads read and hash.
        is_cached: Remember, in the folder of `CacheOptions` on the client, what was in each file
            when it was last read. The next program that takes the directory reads only files that
            have other times, another size or another inode by then.
    """

    ignore: tuple[str, ...] = ()
    ignore_files: tuple[str, ...] = (".meshignore",)
    cross_file_systems: bool = False
    skip_unreadable: bool = False
    threads: int = min(4, os.cpu_count() or 1)
    is_cached: bool = True


@dataclass(frozen=True)
class CacheOptions:
    """Where a host keeps the chunks that it has, for the next mount, and the client what it knows.

    Attributes:
        folder: On each host and on the client; `$MESH_FS_CACHE`, or else a folder of the user's
            cache, if left out.
        budget_bytes: What it may hold; what was not used for longest goes first.
    """

    folder: str | None = None
    budget_bytes: int = 20 << 30

    def place(self) -> Path:
        """Gives the folder on the host where this is called."""
        if self.folder is not None:
            return Path(self.folder).expanduser()
        if named := os.environ.get(_FOLDER_VARIABLE):
            return Path(named)
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "mesh" / "chunks"


@dataclass(frozen=True)
class MountOptions:
    """How a tree is shown on a host.

    Attributes:
        way: `"auto"` takes the first of the others that the host allows; `"fuse"` mounts at once;
            `"image"` mounts when all files are there, and takes root; `"unpack"` writes the files
            into the directory.
        writable: Let programs of the host write: what they do is seen by that host alone, and
            thrown away by `close`. It takes root, but with `"unpack"`.
        allow_other: Let other users read it too; without root the host's `/etc/fuse.conf` must
            allow that. It is for `"fuse"` without `writable` alone: otherwise they may do what the
            modes of the files say.
        read_limit_s: A read of a file that has not come yet fails after so many seconds.
        read_ahead_bytes: What is fetched behind a read that had to wait.
        is_prefetched: Fetch all files in the background, and not only those that are read.
        threads: How many threads answer the kernel.
    """

    way: str = "auto"
    writable: bool = False
    allow_other: bool = False
    read_limit_s: float = 60.0
    read_ahead_bytes: int = 4 << 20
    is_prefetched: bool = True
    threads: int = 4

    def __post_init__(self) -> None:
        if self.way not in _WAYS:
            raise ValueError(f"way={self.way!r}: take one of {', '.join(_WAYS)}")


@dataclass(frozen=True)
class GatherOptions:
    """How directories of hosts are shown on the client.

    Attributes:
        attributes_ttl_s: How old what is shown of a file or a directory may be, in seconds, where
            the host has not noticed its change: on a network file system, say. What it notices is
            shown in milliseconds.
        cache_bytes: How many bytes of files the client keeps, of all hosts; what was not read for
            longest goes first.
        read_ahead_bytes: How far it fetches ahead of who reads a file from one end to the other.
        read_limit_s: Whatever has to wait longer for a host fails with EIO.
        watches_max: How many files and directories each host watches for changes.
        allow_other: Let other users read it too; without root the client's `/etc/fuse.conf` must
            allow that.
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
