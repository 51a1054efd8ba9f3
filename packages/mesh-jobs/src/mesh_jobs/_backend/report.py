"""The report of a backend on an allocation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["THIS_HOST", "Allocation", "HostDraining", "HostReport", "JobEvent", "Phase", "Report"]

#: The plain values, stored as JSON, from which a backend can find its allocation in any process.
Allocation = Mapping[str, Any]

#: The address of the program's own machine, for hosts that need no worker.
THIS_HOST = "this-host"


class Phase(StrEnum):
    """The phase of an allocation or of one of its hosts."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class HostReport:
    """The state of one requested host.

    Attributes:
        mesh: The mesh of the host.
        rank: The rank of the host in the mesh.
        state: The phase; `RUNNING` as soon as programs can attach to the worker.
        address: The address on which the worker listens; None until it is known.
        reason: Why the host is not running, as the scheduler reports it.
        epoch: A number that increases when another worker takes this rank.
        control: The address of the control service, as reported by the worker; None without one.
    """

    mesh: str
    rank: int
    state: Phase
    address: str | None = None
    reason: str = ""
    epoch: int = 0
    control: str | None = None

    @property
    def is_up(self) -> bool:
        """Whether a program can attach to the host."""
        return self.state is Phase.RUNNING and self.address is not None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "mesh": self.mesh,
            "rank": self.rank,
            "state": self.state.value,
            "address": self.address,
            "reason": self.reason,
            "epoch": self.epoch,
            "control": self.control,
        }


@dataclass(frozen=True)
class Report:
    """The current state of an allocation, as the scheduler reports it.

    Attributes:
        state: The phase of the whole allocation; `ENDED` if nothing of it runs or can start
            anymore.
        reason: Why the allocation is pending or has ended, as the scheduler reports it.
        hosts: One entry for each requested host.
        exit_code: The exit status of the client script, as soon as it has ended.
        remaining_s: The time in seconds until the scheduler ends the allocation; None without a
            limit.
    """

    state: Phase
    reason: str = ""
    hosts: tuple[HostReport, ...] = ()
    exit_code: int | None = None
    remaining_s: float | None = None


@dataclass(frozen=True)
class HostDraining:
    """A host that is about to be reclaimed.

    Attributes:
        mesh: The mesh of the host.
        rank: The rank of the host in the mesh.
        reason: `timeout` if the time limit is close, `preempt` if another job takes the host,
            `drain` if an administrator is draining it, `end` for any other reason.
        seconds: The remaining time in seconds; None if it is unknown.
        epoch: The epoch of the worker, see `HostReport`.
    """

    mesh: str
    rank: int
    reason: str
    seconds: float | None
    epoch: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """The mesh and the rank of the host."""
        return self.mesh, self.rank


@dataclass(frozen=True)
class JobEvent:
    """An event of a job.

    Attributes:
        at: The time of the event, in seconds since 1970.
        kind: One word, such as `applied` or `host-lost`, or the scheduler's name of the event.
        text: A human-readable description.
        mesh: The affected mesh, if any.
        rank: The rank of the affected host in the mesh, if any.
    """

    at: float
    kind: str
    text: str
    mesh: str | None = None
    rank: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "at": self.at,
            "kind": self.kind,
            "text": self.text,
            "mesh": self.mesh,
            "rank": self.rank,
        }
