"""Heap snapshots of processes, as rows and as flame graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from mesh_telemetry._stacks.dump import ProcFailure

__all__ = ["HeapSnapshot", "HostHeap"]


@dataclass(frozen=True)
class HeapSnapshot:
    """The allocations of processes.

    Attributes:
        snapshot_id: Its id in the table `heap`.
        table: A row for each call that has allocated memory, in each process, largest first: the
            columns of the table `heap`.
        htmls: The flame graph of each process by its name, as HTML for a browser.
        failed: Processes without a snapshot, with the cause.
    """

    snapshot_id: str
    table: pa.Table
    htmls: Mapping[str, str]
    failed: tuple[ProcFailure, ...]

    @property
    def html(self) -> str:
        """The flame graph, if there is exactly one process.

        Raises:
            ValueError: There are several processes.
        """
        if len(self.htmls) != 1:
            raise ValueError(f"heap snapshots of {len(self.htmls)} processes: use one of htmls")
        return next(iter(self.htmls.values()))


@dataclass(frozen=True)
class HostHeap:
    """The snapshot of one process of a host.

    Attributes:
        rows: The rows as an Arrow stream.
        html: The flame graph.
    """

    rows: bytes
    html: str
