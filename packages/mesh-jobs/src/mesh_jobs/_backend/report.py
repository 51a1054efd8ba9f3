"""What a backend says of an allocation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["THIS_HOST", "HostLeaving", "HostReport", "JobEvent", "Phase", "Report", "Ticket"]

#: With what a backend finds its allocation again, in any process: plain values, stored as JSON.
Ticket = Mapping[str, Any]

#: The address of the machine where the program itself runs, when no worker is needed.
THIS_HOST = "this-host"


class Phase(StrEnum):
    """How far an allocation is, or one of its hosts."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class HostReport:
    """One host that was asked for.

    Attributes:
        mesh: The mesh that it belongs to.
        rank: Its place there.
        state: `RUNNING` as soon as its worker may be attached to.
        address: Where its worker listens, None until that is known.
        reason: Why it is not running, in the scheduler's words.
        epoch: Grows when another worker has taken this place.
        control: Where its control service listens, as the worker has reported it; None when it has
            none.
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
        """Whether it can be attached to."""
        return self.state is Phase.RUNNING and self.address is not None

    def to_json(self) -> dict[str, Any]:
        """Gives plain values."""
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
    """An allocation as the scheduler has it now.

    Attributes:
        state: How far the whole is: `ENDED` when nothing of it runs or will run.
        reason: Why it waits or has ended, in the scheduler's words.
        hosts: One for each host that was asked for.
        exit_code: That of the client script, as soon as it has ended.
        remaining_s: After how many seconds the scheduler ends it; None where it does not.
    """

    state: Phase
    reason: str = ""
    hosts: tuple[HostReport, ...] = ()
    exit_code: int | None = None
    remaining_s: float | None = None


@dataclass(frozen=True)
class HostLeaving:
    """A host that is about to go.

    Attributes:
        mesh: The mesh that it belongs to.
        rank: Its place there.
        reason: `timeout` is the end of the time limit, `preempt` that another job takes its place,
            `drain` that its administrator waits for it, `end` whatever else.
        seconds: How many are left to it; None when nobody knows.
        epoch: Of its worker, as in `HostReport`.
    """

    mesh: str
    rank: int
    reason: str
    seconds: float | None
    epoch: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """Mesh and rank."""
        return self.mesh, self.rank


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job.

    Attributes:
        at: When, in seconds since 1970.
        kind: One word, such as `applied`, `host-lost`, or the scheduler's own.
        text: For people to read.
        mesh: The mesh concerned, if it is one.
        rank: The host of it concerned, if it is one.
    """

    at: float
    kind: str
    text: str
    mesh: str | None = None
    rank: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Gives plain values."""
        return {
            "at": self.at,
            "kind": self.kind,
            "text": self.text,
            "mesh": self.mesh,
            "rank": self.rank,
        }
