"""The methods by which a host shows a tree: mounts, or files written into a directory."""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_fs import _core
from mesh_fs._errors import MountError, MountForbidden

if TYPE_CHECKING:
    from typing import TypeAlias

    from mesh_fs._options import CacheOptions, MountOptions

    MountBackend: TypeAlias = "FuseBackend | UnpackBackend"

__all__ = ["FuseBackend", "MountBackend", "UnpackBackend", "open_backend"]


class FuseBackend:
    """Shows a tree as a FUSE mount, optionally with an overlay for writes of the host."""

    name = "fuse"
    #: Whether `show` requires that all chunks are in the store.
    needs_all = False

    def __init__(
        self,
        tree: _core.Tree,
        view: _core.View,
        overlay: _core.Overlay | None,
        mountpoint: str,
        why: str,
    ) -> None:
        self._tree = tree
        self.view = view
        self._overlay = overlay
        self.mountpoint = mountpoint
        self.why = why

    @property
    def is_open(self) -> bool:
        """Whether it is still mounted."""
        return self.view.is_open() and (self._overlay is None or self._overlay.is_open())

    def show(self, tree: _core.Tree) -> None:
        """Show another tree; changes are visible immediately."""
        if tree is not self._tree:
            self._tree = tree
            self.view.show(tree)
            if self._overlay is not None:
                self._overlay.show()

    def close(self) -> None:
        """Unmount, even while files are open."""
        try:
            if self._overlay is not None:
                self._overlay.close()
        finally:
            self.view.close()
            if self._overlay is not None:
                self._overlay.clear()


class UnpackBackend:
    """Shows a tree by writing it into a directory."""

    name = "unpack"
    needs_all = True

    def __init__(self, store: _core.Store, mountpoint: str, why: str) -> None:
        self._store = store
        self._unpacked = _core.Unpacked(mountpoint)
        self.mountpoint = mountpoint
        self.why = why

    @property
    def is_open(self) -> bool:
        """Always True: only this process knows which files it has written."""
        return True

    def show(self, tree: _core.Tree) -> None:
        """Write the differences from the previous tree."""
        self._unpacked.show(tree, self._store)

    def close(self) -> None:
        """Remove the files that were written."""
        self._unpacked.close()


def open_backend(
    tree: _core.Tree,
    store: _core.Store,
    mountpoint: str,
    options: MountOptions,
    cache: CacheOptions,
) -> MountBackend:
    """Open the first method that this machine permits.

    Raises:
        MountError: The tree cannot be shown there, or not by the requested method.
    """
    _core.remove_stale_mounts(cache.place())
    if options.backend == "unpack":
        return UnpackBackend(store, mountpoint, "it was requested")
    if options.backend == "fuse":
        return _mount(tree, store, mountpoint, options, cache, "it was requested")
    try:
        return _mount(tree, store, mountpoint, options, cache, "this host permits mounting")
    except MountForbidden as error:
        return UnpackBackend(store, mountpoint, f"not fuse: {error}")


def _mount(
    tree: _core.Tree,
    store: _core.Store,
    mountpoint: str,
    options: MountOptions,
    cache: CacheOptions,
    why: str,
) -> FuseBackend:
    view = _core.View(
        tree,
        store,
        read_limit_s=options.read_limit_s,
        read_ahead_bytes=options.read_ahead_bytes,
    )
    name = f"mesh-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    os.makedirs(mountpoint, exist_ok=True)
    overlay = _core.Overlay(mountpoint, folder=cache.place()) if options.writable else None
    mounted = FuseBackend(tree, view, overlay, mountpoint, why)
    place = mountpoint if overlay is None else overlay.lower()
    try:
        view.mount(place, name=name, allow_other=options.allow_other, threads=options.threads)
        if overlay is not None:
            overlay.show()
    except MountError:
        with suppress(MountError):
            mounted.close()
        raise
    return mounted
