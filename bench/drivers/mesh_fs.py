"""Drives mesh-fs: one directory of this machine, mounted on this machine."""

from __future__ import annotations

from pathlib import Path

from bench.drivers.driver import Driver
from mesh_core import this_host
from mesh_fs import CacheOptions, MountHandler, MountOptions, remotemount


class FilesDriver(Driver):
    """Supports one mount at a time; chunks are kept between mounts."""

    name = "mesh_fs"
    #: The name of the process that serves the mount on the host.
    process = "mesh-fs"

    def start(self, workers: int, kind: str = "blocking") -> None:
        this_host().spawn_procs().initialized.get()

    def mount(
        self, source: Path, mountpoint: Path, cache: Path, *, is_prefetched: bool = True
    ) -> MountHandler:
        """Mount the directory, with its chunks in a folder."""
        options = CacheOptions(folder=str(cache))
        mount = MountOptions(is_prefetched=is_prefetched)
        return remotemount(this_host(), source, mountpoint, cache=options, mount=mount).open()

    def moved(self, handler: MountHandler) -> int:
        """Return the number of bytes that the client has sent."""
        return handler.sent_bytes()

    def refresh(self, handler: MountHandler) -> None:
        """Update the mount to the current state of the source."""
        handler.refresh()

    def unmount(self, handler: MountHandler) -> None:
        """Close a mount."""
        handler.close()

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""


driver = FilesDriver
