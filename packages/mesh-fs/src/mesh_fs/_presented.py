"""A tree as users of a host see it: mounted, or written into a directory."""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING

from mesh_fs import _core
from mesh_fs._errors import MountForbidden

if TYPE_CHECKING:
    from mesh_fs._options import MountOptions

__all__ = ["Mounted", "WrittenOut", "present"]


class Mounted:
    """Shows a tree by a mount of our own file system."""

    way = "fuse"
    #: Whether every chunk has to be in the store before `show`.
    needs_all = False

    def __init__(self, tree: _core.Tree, view: _core.View, mountpoint: str, why: str) -> None:
        self._tree = tree
        self.view = view
        self.mountpoint = mountpoint
        self.why = why

    @property
    def is_open(self) -> bool:
        """Whether nobody has unmounted it."""
        return self.view.is_open()

    def show(self, tree: _core.Tree) -> None:
        """Shows another tree; what has changed is seen at once."""
        if tree is not self._tree:
            self._tree = tree
            self.view.show(tree)

    def close(self) -> None:
        """Unmounts it, also while files are open."""
        self.view.close()


class WrittenOut:
    """Shows a tree by writing it into a directory."""

    way = "unpack"
    needs_all = True

    def __init__(self, store: _core.Store, mountpoint: str, why: str) -> None:
        self._store = store
        self._unpacked = _core.Unpacked(mountpoint)
        self.mountpoint = mountpoint
        self.why = why

    @property
    def is_open(self) -> bool:
        """Always: only this process knows what it has written."""
        return True

    def show(self, tree: _core.Tree) -> None:
        """Writes what is different from the tree before."""
        self._unpacked.show(tree, self._store)

    def close(self) -> None:
        """Removes what was written."""
        self._unpacked.close()


def present(
    tree: _core.Tree, store: _core.Store, mountpoint: str, options: MountOptions
) -> Mounted | WrittenOut:
    """Takes the first way that this machine allows.

    Raises:
        MountError: Not there, or not in the way that was asked for.
    """
    if options.way == "unpack":
        return WrittenOut(store, mountpoint, "it was asked for")
    try:
        return _mount(tree, store, mountpoint, options)
    except MountForbidden as error:
        if options.way != "auto":
            raise
        return WrittenOut(store, mountpoint, str(error))


def _mount(tree: _core.Tree, store: _core.Store, mountpoint: str, options: MountOptions) -> Mounted:
    view = _core.View(
        tree,
        store,
        read_limit_s=options.read_limit_s,
        read_ahead_bytes=options.read_ahead_bytes,
    )
    name = f"mesh-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    os.makedirs(mountpoint, exist_ok=True)
    view.mount(mountpoint, name=name, allow_other=options.allow_other, threads=options.threads)
    why = "it was asked for" if options.way == "fuse" else "this host lets us mount"
    return Mounted(tree, view, mountpoint, why)
