"""Drives the peer's `remotemount`, `torchmonarch` 0.7.0; requires `fusermount3`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from monarch.actor import this_host  # type: ignore[import-not-found]
from monarch.remotemount import remotemount  # type: ignore[import-not-found]

from bench.drivers.driver import Driver


class MonarchFilesDriver(Driver):
    """Supports one mount at a time; nothing is kept between mounts."""

    name = "monarch_fs"
    #: The name of the process on the host; the smaller process of this name is its client.
    process = "python"

    def start(self, workers: int, kind: str = "blocking") -> None:
        """Do nothing: no preparation is necessary."""

    def mount(self, source: Path, mountpoint: Path, cache: Path) -> Any:
        """Mount the directory; the peer has no chunk folder."""
        mountpoint.mkdir(exist_ok=True)
        handler = remotemount(this_host(), str(source), str(mountpoint))
        handler.open()
        return handler

    def moved(self, handler: Any) -> int:
        """Return 0: the peer does not report this."""
        return 0

    def refresh(self, handler: Any) -> None:
        """Update the mount to the current state of the source."""
        handler.refresh()

    def unmount(self, handler: Any) -> None:
        """Close a mount."""
        handler.close()

    def close(self) -> None:
        sys.stdout.flush()
        os._exit(0)


driver = MonarchFilesDriver
