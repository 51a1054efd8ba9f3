"""Drives the peer's `remotemount`, `torchmonarch` 0.7.0; it needs `fusermount3`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from monarch.actor import this_host  # type: ignore[import-not-found]
from monarch.remotemount import remotemount  # type: ignore[import-not-found]

from bench.drivers.driver import Driver


class MonarchFilesDriver(Driver):
    """One mount at a time; it keeps nothing between them."""

    name = "monarch_fs"
    #: What the process of the host is called; that of its client is the smaller one.
    process = "python"

    def start(self, workers: int, kind: str = "blocking") -> None:
        """Nothing is needed before."""

    def mount(self, source: Path, mountpoint: Path, cache: Path) -> Any:
        """Mounts it; it has no folder for what it fetched."""
        mountpoint.mkdir(exist_ok=True)
        handler = remotemount(this_host(), str(source), str(mountpoint))
        handler.open()
        return handler

    def moved(self, handler: Any) -> int:
        """Not told by it."""
        return 0

    def refresh(self, handler: Any) -> None:
        """Shows what the source is now."""
        handler.refresh()

    def unmount(self, handler: Any) -> None:
        """Ends a mount."""
        handler.close()

    def close(self) -> None:
        sys.stdout.flush()
        os._exit(0)


driver = MonarchFilesDriver
