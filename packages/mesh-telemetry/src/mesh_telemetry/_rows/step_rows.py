"""Rows of the table `steps`, from the file of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_telemetry._collectives.collectives_file import read_groups
from mesh_telemetry._steps.steps_file import read_steps

if TYPE_CHECKING:
    from typing import Any

    from mesh_telemetry._events.proc_folder import ProcFolder

__all__ = ["step_rows"]


def step_rows(folder: ProcFolder) -> list[dict[str, Any]]:
    """Return a row for each of the latest steps of a process."""
    steps = read_steps(str(folder.path))
    if not steps:
        return []
    identity = folder.identity
    # The first group is the world.
    world = next(iter(read_groups(str(folder.path))), None)
    rank = identity.rank if world is None else world.ranks[world.rank]
    return [
        {
            "mesh": identity.mesh_name,
            "rank": rank,
            "step": step.number,
            "began_us": step.began_ns // 1000,
            "duration_us": step.duration_ns // 1000,
            "input_us": step.input_ns // 1000,
            "communication_us": step.communication_ns // 1000,
            "compute_us": step.compute_ns // 1000,
            "pid": identity.pid,
            "host": identity.host_name,
            "proc": identity.proc,
        }
        for step in steps
    ]
