"""The request to start processes on a host."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from mesh_core._meshes.proc_table import ProcTable
    from mesh_core._processes.command import BootstrapCommand

__all__ = ["StartRequest"]


class StartRequest:
    """Processes to start on one host.

    Attributes:
        table: The mesh of the processes.
        bootstrap: The pickled function that each process runs first; empty for none.
        commands: The command of each process, if not forked from the template.
        binds: Processors, memory nodes and accelerators of each process.
        config: The configuration of the process that spawned the mesh.
        preload: Modules that the processes will need.
        early_events: The maximum number of message events that each process buffers until it has a
            subscriber.
        memory_limit_bytes: Bytes of memory at which each process is killed; None for no limit.
    """

    __slots__ = (
        "binds",
        "bootstrap",
        "commands",
        "config",
        "early_events",
        "memory_limit_bytes",
        "preload",
        "table",
    )

    def __init__(
        self,
        table: ProcTable,
        bootstrap: bytes,
        commands: list[BootstrapCommand] | None,
        binds: list[Mapping[str, str]] | None,
        config: Mapping[str, Any],
        preload: tuple[str, ...],
        early_events: int,
        memory_limit_bytes: int | None,
    ) -> None:
        self.table: ProcTable = table
        self.bootstrap: bytes = bootstrap
        self.commands: list[BootstrapCommand] | None = commands
        self.binds: list[Mapping[str, str]] | None = binds
        self.config: Mapping[str, Any] = config
        self.preload: tuple[str, ...] = preload
        self.early_events: int = early_events
        self.memory_limit_bytes: int | None = memory_limit_bytes
