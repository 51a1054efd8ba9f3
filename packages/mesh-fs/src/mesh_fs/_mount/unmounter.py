"""Unmounts mounts by their source in the mount table; also a standalone program.

The program waits for the end of its standard input, which occurs when the process that started it
exits for any reason. It imports only the standard library.
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

#: The file system type of all mounts of Mesh that a process serves.
_KIND = b"fuse.mesh"
_FORCE, _DETACH = 1, 2
_USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The input that tells the program to exit without unmounting.
CLOSED = b"closed"
#: The output of the program when it starts waiting.
READY = b"r"


class MountEntry(NamedTuple):
    """A line of the mount table.

    Attributes:
        id: The id of the mount.
        parent: The id of the parent mount.
        device: The device number of the file system, such as `0:52`.
        point: The mountpoint.
        source: The source, as given by the process that mounted it.
        kind: The type of the file system.
        options: The options of the file system.
    """

    id: bytes
    parent: bytes
    device: bytes
    point: bytes
    source: bytes
    kind: bytes
    options: frozenset[bytes]


def mounts_of(source: str) -> list[MountEntry]:
    """Return the mounts of a source that are not covered by another mount."""
    wanted = os.fsencode(source)
    return [entry for entry in _uncovered() if entry.source == wanted]


def mounts_of_user(user: int) -> list[MountEntry]:
    """Return the mounts served by processes of a user that are not covered by another mount."""
    wanted = f"user_id={user}".encode()
    return [entry for entry in _uncovered() if entry.kind == _KIND and wanted in entry.options]


def _uncovered() -> list[MountEntry]:
    with open("/proc/self/mountinfo", "rb") as table:
        entries = [_entry(line) for line in table]
    covered = {(entry.parent, entry.point) for entry in entries}
    return [entry for entry in entries if (entry.id, entry.point) not in covered]


def unmount(source: str) -> str | None:
    """Unmount a source everywhere, even while files are open; return the reason if that fails."""
    system = ctypes.CDLL(None, use_errno=True)
    why = None
    for entry in mounts_of(source):
        # A forced unmount also cancels pending requests immediately, but requires more privileges.
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
    """Decode the octal escapes of the mount table, such as those for spaces."""
    return re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), text)


def main(source: str) -> None:
    """Wait for the end of the input, and unmount."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    # The signals are ignored now, so the program cannot end before it has unmounted.
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    if sys.stdin.buffer.read() != CLOSED:
        unmount(source)


if __name__ == "__main__":
    main(sys.argv[1])
