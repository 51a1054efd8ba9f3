"""The record of lost hosts, written once by the first program that observes the loss."""

from __future__ import annotations

from mesh_jobs._backend.report import Phase, Report
from mesh_jobs._state.folder import StateFolder

__all__ = ["record_lost_hosts"]


def record_lost_hosts(folder: StateFolder, report: Report) -> None:
    """Record an event for each host that ended while the job runs, unless one exists."""
    lost = [host for host in report.hosts if host.state is Phase.ENDED]
    if not lost or report.state is Phase.ENDED:
        return
    known: set[tuple[str | None, int | None]] = set()
    for event in folder.events():
        if event.kind == "resized":
            known.clear()  # Other hosts now have those ranks.
        elif event.kind == "host-lost":
            known.add((event.mesh, event.rank))
    for host in lost:
        if (host.mesh, host.rank) not in known:
            folder.note("host-lost", host.reason, host.mesh, host.rank)
