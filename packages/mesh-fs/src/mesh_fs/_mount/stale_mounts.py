"""Removes mounts of this user's programs that were killed together with their guardians."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_fs import _core
from mesh_fs._mount import unmounter

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_fs._mount.unmounter import MountEntry

__all__ = ["remove_left", "unmount_dead"]

#: How long the server of a mount may take to reply. A slower server is not considered dead, because
#: the kernel itself replies for a dead one.
_ANSWER_LIMIT_S = 1.0


def remove_left(cache: Path) -> None:
    """Remove mounts, images and overlays that killed programs of this user have left.

    Args:
        cache: The folder of chunks, which contains the files of images and overlays.
    """
    # An overlay is mounted above another mount, so it must be removed first.
    _core.remove_left(cache)
    unmount_dead()


def unmount_dead() -> None:
    """Unmount mounts of this user that are no longer served by a process.

    Mounts of living programs and of other users are not changed. Mounts that cannot be unmounted
    are skipped.
    """
    with suppress(OSError):
        for entry in unmounter.mounts_of_user(os.getuid()):
            if _is_dead(entry):
                unmounter.unmount(os.fsdecode(entry.source))


def _is_dead(entry: MountEntry) -> bool:
    """Return whether the process that served a mount has exited.

    The kernel aborts the connection of a server when its last descriptor is closed, and replies to
    every later request with `ENOTCONN`.
    """
    refused: list[int | None] = []

    def ask() -> None:
        try:
            os.statvfs(entry.point)
        except OSError as error:
            refused.append(error.errno)

    # A stopped server never replies; the daemon thread then lives until this process exits.
    asking = threading.Thread(target=ask, name="mesh-fs-leftovers", daemon=True)
    asking.start()
    asking.join(_ANSWER_LIMIT_S)
    return refused == [errno.ENOTCONN]
