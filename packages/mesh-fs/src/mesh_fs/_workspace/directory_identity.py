"""Whether a directory of a host is the very directory of the client."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DirectoryIdentity"]


@dataclass(frozen=True)
class DirectoryIdentity:
    """What tells a directory from all others, also from another machine that shares its disk.

    Attributes:
        boot: The running system of the client.
        device: The file system, as that system numbers it.
        inode: The directory in the file system.
        times: When the directory was last changed, in ns: over a network a number alone is
            not enough.
    """

    boot: str
    device: int
    inode: int
    times: tuple[int, int]

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> DirectoryIdentity:
        """Looks at a directory.

        Raises:
            OSError: There is none.
        """
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        seen = os.stat(path)
        return cls(boot, seen.st_dev, seen.st_ino, (seen.st_mtime_ns, seen.st_ctime_ns))

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Says whether it is what is at a path here."""
        try:
            other = DirectoryIdentity.of(path)
        except OSError:
            return False
        if self.inode != other.inode:
            return False
        is_same_here = (self.boot, self.device) == (other.boot, other.device)
        return is_same_here or (self.boot != other.boot and self.times == other.times)
