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

#: The state folder of each allocation that this program has used, by its id.
_folders: dict[str, StateFolder] = {}


def note_used(allocation_id: str, folder: StateFolder) -> None:
    """Record that this program uses the hosts of an allocation."""
    _folders[allocation_id] = folder


def _jobs() -> Iterator[dict[str, Any]]:
    for allocation_id, folder in list(_folders.items()):
        attached = attached_hosts(allocation_id)
        try:
            record = folder.read()
        except JobError:
            # Another program is writing the record, or has removed it.
            record = None
        if not attached or record is None or record.allocation_id != allocation_id:
            continue
        applied_us = int(datetime.fromisoformat(record.applied).timestamp() * 1e6)
        for mesh in record.spec.meshes:
            yield {
                "context": folder.context,
                "name": record.spec.name,
                "backend": record.spec.backend,
                "allocation_id": allocation_id,
                "mesh": mesh.name,
                "hosts": mesh.hosts,
                "attached": attached.get(mesh.name, 0),
                "applied_us": applied_us,
                "ttl_s": record.spec.ttl_s,
                "is_ending": record.is_ending,
            }


TABLES = {
    "jobs": (
        "Jobs whose hosts the program uses, one row per mesh.",
        (
            "context s | name under which the job is applied",
            "name s | name of the job at the scheduler",
            "backend s | backend that allocates the hosts: `slurm`, `kubernetes`, `ssh`, ...",
            "allocation_id s | id of the allocation",
            "mesh s | name of the mesh",
            "hosts u64 | number of requested hosts",
            "attached u64 | number of hosts that the program is attached to",
            "applied_us i64 | time when the job was applied, in microseconds since the epoch",
            "ttl_s f64 | seconds until hosts that no program uses are released",
            "is_ending b | whether the job is being released",
        ),
        _jobs,
    )
}
