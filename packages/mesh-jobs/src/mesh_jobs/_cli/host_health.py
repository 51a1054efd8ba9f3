"""The health of hosts as reported by their control services, even while a program uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mesh_jobs._cli.control_calls import call_hosts, is_control_here
from mesh_jobs._diagnostics.diagnosis import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_jobs._backend.report import HostReport
    from mesh_jobs._control.client import ControlClient
    from mesh_jobs._job.job import Job

__all__ = ["HostHealth", "host_health"]


@dataclass(frozen=True, slots=True)
class HostHealth:
    """The health of one host.

    Attributes:
        host: The host.
        is_healthy: Whether it can accept a program or serves one; None if it is unknown.
        owner: The program that it serves; empty if it is free.
        finding: The problem that was found, if any.
    """

    host: HostReport
    is_healthy: bool | None
    owner: str = ""
    finding: Finding | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "mesh": self.host.mesh,
            "rank": self.host.rank,
            "healthy": self.is_healthy,
            "program": self.owner or None,
        }


def host_health(job: Job, hosts: Sequence[HostReport]) -> list[HostHealth]:
    """Query each host that has a control service; the health of the others is unknown."""
    served = [one for one in hosts if one.control is not None] if is_control_here() else []
    replies = call_hosts(job, served, _check_health) if served else []
    answers = {(one.host.mesh, one.host.rank): one for one in replies}
    found = []
    for host in hosts:
        answer = answers.get((host.mesh, host.rank))
        if answer is None:
            found.append(HostHealth(host, None))
        elif answer.error is not None:
            advice = "open its port in firewalls, as that of the worker"
            finding = Finding(answer.where, str(answer.error), advice)
            found.append(HostHealth(host, None, finding=finding))
        else:
            is_healthy, owner = answer.value
            finding_or_none = None
            if not is_healthy:
                what, advice = "its worker is about to end", "see mesh logs and mesh status"
                finding_or_none = Finding(answer.where, what, advice)
            found.append(HostHealth(host, is_healthy, owner, finding_or_none))
    return found


def _check_health(client: ControlClient) -> tuple[bool, str]:
    is_healthy = client.is_healthy()
    return is_healthy, client.list_processes().host.program.owner
