"""Steps of programs that mount a directory of the client on all hosts of their job."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesh_core import Actor, HostMesh, endpoint
from mesh_fs import CacheOptions, MountHandler, remotemount
from tests.hosts.cluster import steps

#: Exceeds the duration of every transfer that completes, also on a busy machine.
LIMIT_S = 90.0

#: These folders are private to each host.
PROJECT, MOUNTPOINT, CHUNKS = "/tmp/project", "/tmp/mnt/$SUBDIR/project", "/tmp/chunks"


@dataclass
class Shown:
    """The mount of the program."""

    handler: MountHandler | None = None
    lookers: Any = None


shown = Shown()


class Looker(Actor):
    """Inspects the mount on its host."""

    @endpoint
    def digest(self, place: str) -> str:
        """Return a digest of a directory on this host."""
        return digest(place)


def digest(place: str) -> str:
    """Return a digest of all names, modes, modification times and contents below a directory."""
    seen = hashlib.sha256()
    for path in sorted(Path(place).rglob("*")):
        told = path.lstat()
        seen.update(f"{path.relative_to(place)} {told.st_mode} {told.st_mtime_ns}".encode())
        if path.is_file():
            seen.update(path.read_bytes())
    return seen.hexdigest()


def make_project(seed: int, files: int, file_len: int) -> int:
    """Create the directory from scratch and return the number of bytes in it."""
    shutil.rmtree(PROJECT, ignore_errors=True)
    chance = random.Random(seed)
    for number in range(files):
        path = Path(PROJECT, f"part{number % 7}", f"file{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(file_len))
    os.symlink("part0/file0", f"{PROJECT}/link")
    return files * file_len


def edit(name: str, content: bytes) -> None:
    """Overwrite a file of the directory."""
    Path(PROJECT, name).write_bytes(content)


def open_mount() -> None:
    """Mount the directory on all hosts."""
    hosts = _hosts()
    shown.lookers = hosts.spawn_procs(name="lookers").spawn("looker", Looker)
    cache = CacheOptions(folder=CHUNKS)
    shown.handler = remotemount(hosts, PROJECT, MOUNTPOINT, cache=cache).open()


def wait() -> list[str]:
    """Wait until all hosts have the complete tree, and return the status of each host."""
    found = _handler().wait(LIMIT_S).values()
    return [
        type(one).__name__ if isinstance(one, Exception) else one.problem or str(one.is_complete)
        for one in found
    ]


def refresh() -> bool:
    """Update the mounts to the current content of the directory."""
    return _handler().refresh()


def sent_bytes() -> int:
    """Return the number of bytes that the client has sent for the mount."""
    return _handler().sent_bytes()


def digests(hosts: list[int]) -> list[str]:
    """Return the digests that these hosts compute."""
    return [
        shown.lookers.slice(hosts=host).digest.call_one(place(host)).get(timeout=LIMIT_S)
        for host in hosts
    ]


def project_digest() -> str:
    """Return the digest of the client's own directory."""
    return digest(PROJECT)


def place(host: int) -> str:
    """Return the path of the mount on a host."""
    return MOUNTPOINT.replace("$SUBDIR", f"hosts_{host}")


def close() -> None:
    """Unmount the directory on all hosts."""
    _handler().close()


def _hosts() -> HostMesh:
    assert steps.job.hosts is not None, "the program has attached before"
    return steps.job.hosts


def _handler() -> MountHandler:
    assert shown.handler is not None, "it was mounted before"
    return shown.handler
