"""Rows of the table `collectives`, from the file of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_telemetry._collectives.collectives_file import read_collectives, read_groups

if TYPE_CHECKING:
    from typing import Any

    from mesh_telemetry._events.proc_folder import ProcFolder

__all__ = ["collective_rows"]


def collective_rows(folder: ProcFolder) -> list[dict[str, Any]]:
    """Return a row for each of the latest operations of a process."""
    identity = folder.identity
    groups = {group.number: group for group in read_groups(str(folder.path))}
    rows = []
    for one in read_collectives(str(folder.path)):
        group = groups.get(one.group)
        if group is None:
            continue
        rows.append(
            {
                "mesh": identity.mesh_name,
                "world": group.world,
                "process_group": group.name,
                "sequence": one.sequence,
                "operation": one.operation,
                "rank": group.ranks[group.rank],
                "peer": one.peer if one.peer >= 0 else None,
                "shape": one.shape,
                "bytes": one.nbytes,
                "entered_us": one.entered_ns // 1000,
                "left_us": one.left_ns // 1000 if one.left_ns else None,
                "is_async": one.is_async,
                "is_failed": one.is_failed,
                "file": one.file,
                "line": one.line,
                "function": one.function,
                "host": identity.host_name,
                "proc": identity.proc,
            }
        )
    return rows
