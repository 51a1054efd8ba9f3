"""Snapshot of the objects in a process, in the form of the events that announced them."""

from __future__ import annotations

import time

from mesh_core._observability.events import Event
from mesh_core._runtime.runtime import is_running, runtime

__all__ = ["snapshot"]


def snapshot() -> list[Event]:
    """Return `spawned` events of the meshes of this process and `started` events of its actors.

    Late subscribers use it to learn the current state. The times are the current time, and
    `spawned` events do not contain the owner.
    """
    if not is_running():
        return []
    current, now_ns = runtime(), time.time_ns()
    found = []
    for mesh in current.ownership.owned():
        fields = {
            "class_name": mesh._class_name,
            "procs": mesh._table.uid,
            "extent": dict(mesh.extent),
        }
        found.append(
            Event(
                now_ns,
                "spawned",
                actor=mesh._uid,
                size=len(mesh),
                text=mesh._name,
                attributes=fields,
                subject=mesh,
            )
        )
    for port, cell in current.actors.copy().items():
        # An actor whose `__init__` is still running has also recorded its start.
        if not cell.is_ended:
            fields = {"class_name": cell.class_name}
            found.append(
                Event(
                    now_ns,
                    "started",
                    actor=port,
                    rank=cell.rank,
                    text=cell.name,
                    attributes=fields,
                )
            )
    return found
