"""What can be chosen for a mount."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CacheOptions", "MountOptions", "SnapshotOptions"]

_FOLDER_VARIABLE = "MESH_FS_CACHE"


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
    """

    ignore: tuple[str, ...] = ()
    ignore_files: tuple[str, ...] = (".meshignore",)
    cross_file_systems: bool = False
    skip_unreadable: bool = False
    threads: int = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class CacheOptions:
    """Where a host keeps the chunks that it has, for the next mount.

    Attributes:
        folder: On the host; `$MESH_FS_CACHE`, or else a folder of the user's cache, if left out.
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
        way: `"auto"` takes the first of the others that the host allows; `"fuse"` mounts;
            `"unpack"` writes the files into the directory.
        allow_other: Let other users read it too; without root the host's `/etc/fuse.conf` must
            allow that.
        read_limit_s: A read of a file that has not come yet fails after so many seconds.
        read_ahead_bytes: What is fetched behind a read that had to wait.
        is_prefetched: Fetch all files in the background, and not only those that are read.
        threads: How many threads answer the kernel.
    """

    way: str = "auto"
    allow_other: bool = False
    read_limit_s: float = 60.0
    read_ahead_bytes: int = 4 << 20
    is_prefetched: bool = True
    threads: int = 4
