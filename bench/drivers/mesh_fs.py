"""Drives mesh-fs: one directory of this machine, mounted on this machine."""

from __future__ import annotations

from pathlib import Path

from bench.drivers.driver import Driver
from mesh_core import this_host
from mesh_fs import CacheOptions, MountHandler, remotemount


class FilesDriver(Driver):
    """One mount at a time; chunks are kept between them."""

    name = "mesh_fs"
    process = "mesh-fs"

    def start(self, workers: int, kind: str = "blocking") -> None:
        this_host().spawn_procs().initialized.get()

    def mount(self, source: Path, mountpoint: Path, cache: Path) -> MountHandler:
        """Mounts it, with its chunks in a folder."""
        options = CacheOptions(folder=str(cache))
        return remotemount(this_host(), source, mountpoint, cache=options).open()

    def moved(self, handler: MountHandler) -> int:
        """Gives the bytes that have left the client."""
        return handler.sent_bytes()

    def refresh(self, handler: MountHandler) -> None:
        """Shows what the source is now."""
        handler.refresh()

    def unmount(self, handler: MountHandler) -> None:
        """Ends a mount."""
        handler.close()

    def close(self) -> None:
        """Nothing is left to end."""


driver = FilesDriver
