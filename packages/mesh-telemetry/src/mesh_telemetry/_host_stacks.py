"""Stacks of the processes of one host: taken with py-spy, and kept there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mesh_telemetry._pyspy_tables import DumpOrigin
from mesh_telemetry._stack_folder import STACK_FOLDER, StackFolder
from mesh_telemetry._stack_tables import store_dump

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_telemetry._options import TelemetryConfig

__all__ = ["HostStacks"]


class HostStacks:
    """What is known of stacks on a host, beyond what processes say themselves.

    Args:
        host_folder: That of the host.
        host_name: What the machine calls itself.
        config: What is kept.
    """

    def __init__(self, host_folder: Path, host_name: str, config: TelemetryConfig) -> None:
        self._host_folder = host_folder
        self._host_name = host_name
        self._kept = StackFolder(
            host_folder / STACK_FOLDER,
            bytes_max=config.stacks_bytes,
            retention_s=config.retention_s,
        )

    def store(self, dump_id: str, proc: str, said: str) -> None:
        """Keeps a dump that somebody else has made.

        Raises:
            TelemetryError: It is no dump.
            StorageError: There is no room for it.
        """
        now_us = time.time_ns() // 1000
        store_dump(self._kept, said, DumpOrigin(dump_id, now_us, self._host_name, proc, proc))

    def close(self) -> None:
        """Ends what it does."""
        self._kept.close()
