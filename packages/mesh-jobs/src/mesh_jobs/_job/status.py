"""A job as it is at one moment, without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mesh_jobs._backend.report import HostReport, Phase

__all__ = ["JobStatus"]


@dataclass(frozen=True)
class JobStatus:
    """A job as its scheduler has it now.

    Attributes:
        context: Under what name it is applied.
        name: The job's own name.
        backend: Which backend it is from.
        state: How far it is: pending, running or ended.
        reason: Why it waits or has ended, in the scheduler's words.
        hosts: One entry for each host that was asked for.
        owner: Who has applied it: user, host and pid.
        applied: When, in ISO format.
        folder: Where its state is.
        order_id: Under what id it was ordered; each worker has it on its command line.
        exit_code: That of the client script, once it has ended.
        remaining_s: After how many seconds the scheduler ends it; None where it does not.
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
    order_id: str
    exit_code: int | None = None
    # It changes all the time, which is no news.
    remaining_s: float | None = field(default=None, compare=False)

    @property
    def is_up(self) -> bool:
        """Whether all its hosts can be attached to."""
        return self.state is Phase.RUNNING and all(host.is_up for host in self.hosts)

    @property
    def up(self) -> int:
        """How many of its hosts can be attached to."""
        return sum(host.is_up for host in self.hosts)

    def of(self, mesh: str) -> tuple[HostReport, ...]:
        """Gives the hosts of one mesh, by rank."""
        chosen = (host for host in self.hosts if host.mesh == mesh)
        return tuple(sorted(chosen, key=lambda host: host.rank))

    def to_json(self) -> dict[str, Any]:
        """Gives plain values, as `mesh status --json` prints them."""
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
            "order_id": self.order_id,
            "exit_code": self.exit_code,
            "remaining_s": self.remaining_s,
        }

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.name}: {self.state}{why}, {self.up} of {len(self.hosts)} hosts up"
