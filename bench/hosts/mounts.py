"""The measured program on the client: mounts a directory on all hosts of its job."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.hosts.program import LIMIT_S, Program, answer
from bench.scale import FULL, QUICK
from bench.trees import SMALL_BYTES, bytes_of, make_tree, read_all
from mesh_core import Actor, endpoint
from mesh_fs import CacheOptions, MountHandler, remotemount

#: These folders are private to each host.
_SOURCE, _MOUNTPOINT, _CHUNKS = Path("/tmp/source"), "/tmp/mount", "/tmp/chunks"
_EDITED = "folder0/file0"


class Reader(Actor):
    """Reads the mount on its host."""

    @endpoint
    def read_all(self) -> int:
        """Read all files; return the number of bytes."""
        return read_all(Path(_MOUNTPOINT))

    @endpoint
    def read(self, name: str) -> bytes:
        """Read a file."""
        return Path(_MOUNTPOINT, name).read_bytes()


class Mounts(Program):
    """The commands of the program, by name."""

    def make(self, is_quick: bool) -> int:
        """Create the directory and spawn readers on all hosts; return the size in bytes."""
        make_tree(_SOURCE, QUICK if is_quick else FULL)
        self._readers = self._hosts.spawn_procs(name="readers").spawn("readers", Reader)
        self._readers.initialized.get(timeout=LIMIT_S)
        return bytes_of(_SOURCE)

    def open(self) -> float:
        """Mount the directory on all hosts; return the duration in seconds."""
        started = time.perf_counter()
        cache = CacheOptions(folder=_CHUNKS)
        self._handler: MountHandler = remotemount(self._hosts, _SOURCE, _MOUNTPOINT, cache=cache)
        self._handler.open()
        return time.perf_counter() - started

    def read_all(self) -> float:
        """Make all hosts read all files; return the duration in seconds."""
        started = time.perf_counter()
        seen = self._readers.read_all.call().get(timeout=LIMIT_S).values()
        took = time.perf_counter() - started
        assert set(seen) == {bytes_of(_SOURCE)}, seen
        return took

    def edit(self) -> float:
        """Edit a small file; return the time until all hosts have seen the change, in seconds."""
        content = os.urandom(SMALL_BYTES)
        (_SOURCE / _EDITED).write_bytes(content)
        started = time.perf_counter()
        self._handler.refresh()
        seen = self._readers.read.call(_EDITED).get(timeout=LIMIT_S).values()
        took = time.perf_counter() - started
        assert set(seen) == {content}
        return took

    def close(self) -> None:
        """Unmount the directory on all hosts."""
        self._handler.close()


if __name__ == "__main__":
    answer(Mounts)
