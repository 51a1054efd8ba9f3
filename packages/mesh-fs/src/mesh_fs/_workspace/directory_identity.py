"""Detection whether a directory of a host is the client's own directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DirectoryIdentity"]


@dataclass(frozen=True)
class DirectoryIdentity:
    """Identifies a directory, even from another machine that shares its disk.

    Attributes:
        boot: The boot id of the client.
        device: The device number of the file system on the client.
        inode: The inode number of the directory.
        times: The modification and change times of the directory, in ns. Over a network, an inode
            number alone is not sufficient.
    """

    boot: str
    device: int
    inode: int
    times: tuple[int, int]

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> DirectoryIdentity:
        """Return the identity of a directory.

        Raises:
            OSError: The directory does not exist.
        """
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        seen = os.stat(path)
        return cls(boot, seen.st_dev, seen.st_ino, (seen.st_mtime_ns, seen.st_ctime_ns))

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a path on this machine is the same directory."""
        try:
            other = DirectoryIdentity.of(path)
        except OSError:
            return False
        if self.inode != other.inode:
            return False
        is_same_here = (self.boot, self.device) == (other.boot, other.device)
        return is_same_here or (self.boot != other.boot and self.times == other.times)
