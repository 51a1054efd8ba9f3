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
from tests.hosts.crew import steps

#: Longer than any delivery takes that does come to its end, also on a busy machine.
LIMIT_S = 90.0

#: In folders that each host has for itself.
PROJECT, MOUNTPOINT, CHUNKS = "/tmp/project", "/tmp/mnt/$SUBDIR/project", "/tmp/chunks"


@dataclass
class Shown:
    """What the program has mounted."""

    handler: MountHandler | None = None
    lookers: Any = None


shown = Shown()


class Looker(Actor):
    """Sees what its host sees."""

    @endpoint
    def digest(self, place: str) -> str:
        """Says in a few letters what is there."""
        return digest(place)


def digest(place: str) -> str:
    """Says in a few letters what names, modes and bytes are below a directory."""
    seen = hashlib.sha256()
    for path in sorted(Path(place).rglob("*")):
        told = path.lstat()
        seen.update(f"{path.relative_to(place)} {told.st_mode} {told.st_mtime_ns}".encode())
        if path.is_file():
            seen.update(path.read_bytes())
    return seen.hexdigest()


def make_project(seed: int, files: int, file_len: int) -> int:
    """Makes the directory anew; says how many bytes are in it."""
    shutil.rmtree(PROJECT, ignore_errors=True)
    chance = random.Random(seed)
    for number in range(files):
        path = Path(PROJECT, f"part{number % 7}", f"file{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(file_len))
    os.symlink("part0/file0", f"{PROJECT}/link")
    return files * file_len


def edit(name: str, content: bytes) -> None:
    """Writes a file of the directory anew."""
    Path(PROJECT, name).write_bytes(content)


def open_mount() -> None:
    """Mounts the directory on all hosts."""
    hosts = _hosts()
    shown.lookers = hosts.spawn_procs(name="lookers").spawn("looker", Looker)
    cache = CacheOptions(folder=CHUNKS)
    shown.handler = remotemount(hosts, PROJECT, MOUNTPOINT, cache=cache).open()


def wait() -> list[str]:
    """Waits until all have what there is; says of each host how it is."""
    found = _handler().wait(LIMIT_S).values()
    return [
        type(one).__name__ if isinstance(one, Exception) else one.problem or str(one.is_complete)
        for one in found
    ]


def refresh() -> bool:
    """Shows the directory as it is now."""
    return _handler().refresh()


def sent_bytes() -> int:
    """How many bytes the client has sent for the mount."""
    return _handler().sent_bytes()


def digests(hosts: list[int]) -> list[str]:
    """What some hosts see."""
    return [
        shown.lookers.slice(hosts=host).digest.call_one(place(host)).get(timeout=LIMIT_S)
        for host in hosts
    ]


def project_digest() -> str:
    """What the client sees of its own."""
    return digest(PROJECT)


def place(host: int) -> str:
    """Where the directory is on a host."""
    return MOUNTPOINT.replace("$SUBDIR", f"hosts_{host}")


def close() -> None:
    """Unmounts it everywhere."""
    _handler().close()


def _hosts() -> HostMesh:
    assert steps.job.hosts is not None, "the program has attached before"
    return steps.job.hosts


def _handler() -> MountHandler:
    assert shown.handler is not None, "it was mounted before"
    return shown.handler
