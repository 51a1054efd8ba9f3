"""Removes mounts of this user's programs that were killed together with what would unmount them."""

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

#: How long the server of a mount may take to say that it is alive. One that takes longer is not
#: dead: the kernel answers for a dead one.
_ANSWER_LIMIT_S = 1.0


def remove_left(cache: Path) -> None:
    """Removes mounts, images and overlays that killed programs of this user have left.

    Args:
        cache: The folder of chunks, in which images and overlays have their files.
    """
    # An overlay is over one of the other mounts: it goes first.
    _core.remove_left(cache)
    unmount_dead()


def unmount_dead() -> None:
    """Unmounts what this user's programs have mounted and no process serves any more.

    Mounts of living programs and of other users stay. What cannot be unmounted stays as well.
    """
    with suppress(OSError):
        for entry in unmounter.mounts_of_user(os.getuid()):
            if _is_dead(entry):
                unmounter.unmount(os.fsdecode(entry.source))


def _is_dead(entry: MountEntry) -> bool:
    """Whether the process that served a mount has ended.

    The kernel aborts the connection of a server when its last descriptor is closed, and answers
    every request with `ENOTCONN` from then on.
    """
    refused: list[int | None] = []

    def ask() -> None:
        try:
            os.statvfs(entry.point)
        except OSError as error:
            refused.append(error.errno)

    # A server that is stopped does not answer; the thread ends with this process at the latest.
    asking = threading.Thread(target=ask, name="mesh-fs-leftovers", daemon=True)
    asking.start()
    asking.join(_ANSWER_LIMIT_S)
    return refused == [errno.ENOTCONN]
