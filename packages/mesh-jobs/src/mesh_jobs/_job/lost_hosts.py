"""Lost hosts, noted once by whoever sees it first."""

from __future__ import annotations

from mesh_jobs._backend.report import Phase, Report
from mesh_jobs._state.folder import StateFolder

__all__ = ["note_losses"]


def note_losses(folder: StateFolder, report: Report) -> None:
    """Notes each host that has ended while the job goes on, unless that was done."""
    lost = [host for host in report.hosts if host.state is Phase.ENDED]
    if not lost or report.state is Phase.ENDED:
        return
    known: set[tuple[str | None, int | None]] = set()
    for event in folder.events():
        if event.kind == "resized":
            known.clear()  # Others have taken those places.
        elif event.kind == "host-lost":
            known.add((event.mesh, event.rank))
    for host in lost:
        if (host.mesh, host.rank) not in known:
            folder.note("host-lost", host.reason, host.mesh, host.rank)
