"""Takes mounts away by what the mount table calls their source, also as a program of its own.

As a program it waits for the end of its input, which comes with the end of who has started it,
however that comes. It imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import NamedTuple

__all__ = ["CLOSED", "READY", "MountEntry", "mounts_of", "mounts_of_user", "unmount"]

#: What the mount table says of the kind of all our mounts that a process serves.
_KIND = b"fuse.mesh"
_FORCE, _DETACH = 1, 2
_USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: What is said to the program when there is nothing left to do.
CLOSED = b"closed"
#: What the program says when it has begun to wait.
READY = b"r"


class MountEntry(NamedTuple):
    """A line of the mount table.

    Attributes:
        id: Its number.
        parent: The number of what it is mounted in.
        device: The number of its file system, as `0:52`.
        point: Where it is.
        source: What is mounted, in the words of who has mounted it.
        kind: The type of its file system.
        options: The options of its file system.
    """

    id: bytes
    parent: bytes
    device: bytes
    point: bytes
    source: bytes
    kind: bytes
    options: frozenset[bytes]


def mounts_of(source: str) -> list[MountEntry]:
    """Gives where something is mounted, but for where something else is mounted over it."""
    wanted = os.fsencode(source)
    return [entry for entry in _uncovered() if entry.source == wanted]


def mounts_of_user(user: int) -> list[MountEntry]:
    """Gives the mounts that processes of a user serve, but for covered ones."""
    wanted = f"user_id={user}".encode()
    return [entry for entry in _uncovered() if entry.kind == _KIND and wanted in entry.options]


def _uncovered() -> list[MountEntry]:
    with open("/proc/self/mountinfo", "rb") as told:
        entries = [_entry(line) for line in told]
    covered = {(entry.parent, entry.point) for entry in entries}
    return [entry for entry in entries if (entry.id, entry.point) not in covered]


def unmount(source: str) -> str | None:
    """Takes it away wherever it is, also while files are open; says why if it cannot."""
    system = ctypes.CDLL(None, use_errno=True)
    why = None
    for entry in mounts_of(source):
        # By force, whoever waits for an answer is sent away at once. That takes more rights.
        if any(not system.umount2(entry.point, flags) for flags in (_FORCE | _DETACH, _DETACH)):
            continue
        why = os.strerror(ctypes.get_errno()) if not _unmount_as_user(entry.point) else why
    return why if mounts_of(source) else None


def _unmount_as_user(point: bytes) -> bool:
    path = f"{os.environ.get('PATH', '')}:{_USUAL}"
    program = shutil.which("fusermount3", path=path)
    if program is None:
        return False
    words = [os.fsencode(program), b"-u", b"-z", b"-q", b"--", point]
    return subprocess.run(words, stdin=subprocess.DEVNULL).returncode == 0


def _entry(line: bytes) -> MountEntry:
    before, _, after = line.partition(b" - ")
    id_, parent, device, _, point, *_ = before.split(b" ")
    kind, source, options = after.rstrip(b"\n").split(b" ", 2)
    words = frozenset(options.split(b","))
    return MountEntry(id_, parent, device, _plain(point), _plain(source), kind, words)


def _plain(text: bytes) -> bytes:
    """Undoes how the mount table writes blanks and the like."""
    return re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), text)


def main(source: str) -> None:
    """Waits for the end of the input, and unmounts."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    # From now on it does not end before it has done its work.
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    if sys.stdin.buffer.read() != CLOSED:
        unmount(source)


if __name__ == "__main__":
    main(sys.argv[1])
