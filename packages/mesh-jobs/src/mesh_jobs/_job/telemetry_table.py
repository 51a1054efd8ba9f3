"""The table `jobs` of mesh-telemetry: the jobs whose hosts this program uses."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from mesh_jobs._errors import JobError
from mesh_jobs._job.state import attached_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_jobs._state.folder import StateFolder

__all__ = ["TABLES", "note_used"]

#: The state folder of each order that this program has used, by order id.
_folders: dict[str, StateFolder] = {}


def note_used(order_id: str, folder: StateFolder) -> None:
    """Record that this program uses the hosts of an order."""
    _folders[order_id] = folder


def _jobs() -> Iterator[dict[str, Any]]:
    for order_id, folder in list(_folders.items()):
        attached = attached_hosts(order_id)
        try:
            record = folder.read()
        except JobError:
            # Another program is writing the record, or has removed it.
            record = None
        if not attached or record is None or record.order_id != order_id:
            continue
        applied_us = int(datetime.fromisoformat(record.applied).timestamp() * 1e6)
        for mesh in record.spec.meshes:
            yield {
                "context": folder.context,
                "name": record.spec.name,
                "backend": record.spec.backend,
                "order_id": order_id,
                "mesh": mesh.name,
                "hosts": mesh.hosts,
                "attached": attached.get(mesh.name, 0),
                "applied_us": applied_us,
                "ttl_s": record.spec.ttl_s,
                "is_ending": record.is_ending,
            }


TABLES = {
    "jobs": (
        "Jobs whose hosts the program uses, a row for each mesh.",
        (
            "context s | under what name it is applied",
            "name s | what it is called at the scheduler",
            "backend s | who has the hosts: `slurm`, `kubernetes`, `ssh`, ...",
            "order_id s | the order",
            "mesh s | the mesh",
            "hosts u64 | how many hosts it has asked for",
            "attached u64 | how many hosts the program has attached to",
            "applied_us i64 | when it was applied, in microseconds since the epoch",
            "ttl_s f64 | how long its hosts stay when no program uses them",
            "is_ending b | whether it is being given back",
        ),
        _jobs,
    )
}
