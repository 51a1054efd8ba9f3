"""The status of a job at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mesh_jobs._backend.report import HostReport, Phase

__all__ = ["JobStatus"]

# Notebooks show no more hosts than this.
_ROWS_MAX = 32


@dataclass(frozen=True)
class JobStatus:
    """The current status of a job, as its scheduler reports it.

    Attributes:
        context: The context under which the job is applied.
        name: The name of the job.
        backend: The name of the backend.
        state: The phase of the allocation: pending, running or ended.
        reason: Why the allocation is pending or has ended, as the scheduler reports it.
        hosts: One entry for each requested host.
        owner: The program that applied the job: user, host and pid.
        applied: When the job was applied, in ISO format.
        folder: The state folder of the job.
        allocation_id: The id of the allocation; it is on the command line of each worker.
        exit_code: The exit status of the client script, once it has ended.
        remaining_s: The time in seconds until the scheduler ends the job; None without a limit.
    """

    context: str
    name: str
    backend: str
    state: Phase
    reason: str
    hosts: tuple[HostReport, ...]
    owner: Mapping[str, Any]
    applied: str
    folder: str
    allocation_id: str
    exit_code: int | None = None
    # This value changes constantly, so it must not make a status count as new.
    remaining_s: float | None = field(default=None, compare=False)

    @property
    def is_up(self) -> bool:
        """Whether all hosts are ready to be attached to."""
        return self.state is Phase.RUNNING and all(host.is_up for host in self.hosts)

    @property
    def up(self) -> int:
        """The number of hosts that are ready to be attached to."""
        return sum(host.is_up for host in self.hosts)

    def of(self, mesh: str) -> tuple[HostReport, ...]:
        """Return the hosts of one mesh, ordered by rank."""
        chosen = (host for host in self.hosts if host.mesh == mesh)
        return tuple(sorted(chosen, key=lambda host: host.rank))

    def _repr_html_(self) -> str:
        """Return the hosts as a table, for notebooks."""
        # Only notebooks need it.
        from mesh_core.spi import html_table  # noqa: PLC0415

        title = f"{self.name}: {self.state}, {self.up} of {len(self.hosts)} hosts up"
        rows = [
            (host.mesh, str(host.rank), str(host.state), host.address or "", host.reason)
            for host in self.hosts[:_ROWS_MAX]
        ]
        heads = ("mesh", "rank", "state", "address", "reason")
        return html_table(title, heads, rows, len(self.hosts) - len(rows))

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as `mesh status --json` prints them."""
        return {
            "context": self.context,
            "name": self.name,
            "backend": self.backend,
            "state": self.state.value,
            "reason": self.reason,
            "hosts": [host.to_json() for host in self.hosts],
            "owner": dict(self.owner),
            "applied": self.applied,
            "folder": self.folder,
            "allocation_id": self.allocation_id,
            "exit_code": self.exit_code,
            "remaining_s": self.remaining_s,
        }

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.name}: {self.state}{why}, {self.up} of {len(self.hosts)} hosts up"
