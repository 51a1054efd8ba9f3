"""What a service and its callers tell each other: who the replicas are, and how busy they are."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from mesh_core._meshes.actor_mesh import ActorMesh

    # By the number of a replica: calls under way, and sessions.
    Loads: TypeAlias = dict[int, tuple[int, int]]

__all__ = [
    "CUT",
    "DRAINED",
    "Answer",
    "Member",
    "ReplicaStatus",
    "Report",
    "ServiceStatus",
    "Whole",
]

# How a replica has retired: no call was lost with it, or some may have been.
DRAINED, CUT = "drained", "cut"


class Member:
    """A replica as callers know it.

    Attributes:
        id: Its number; none is used twice in a service.
        mesh: Its actors.
        is_open: Whether it takes new calls.
    """

    __slots__ = ("id", "is_open", "mesh")

    def __init__(self, id: int, mesh: ActorMesh[Any], is_open: bool) -> None:
        self.id: int = id
        self.mesh: ActorMesh[Any] = mesh
        self.is_open: bool = is_open


class Whole:
    """All of a service at one time.

    Attributes:
        version: Grows with each change.
        members: The replicas that have started.
        retired: How the latest of the others went: `DRAINED` or `CUT`.
        is_closed: Whether the service takes no more calls.
    """

    __slots__ = ("is_closed", "members", "retired", "version")

    def __init__(
        self, version: int, members: tuple[Member, ...], retired: dict[int, str], is_closed: bool
    ) -> None:
        self.version: int = version
        self.members: tuple[Member, ...] = members
        self.retired: dict[int, str] = retired
        self.is_closed: bool = is_closed


class Report:
    """What a calling process tells the service.

    Attributes:
        caller: Which process, as a number that it has drawn.
        version: The version that it goes by.
        loads: What it has under way.
        queued: How many of its calls wait for room.
        is_last: Whether it will say nothing more, unless it calls again.
    """

    __slots__ = ("caller", "is_last", "loads", "queued", "version")

    def __init__(
        self, caller: int, version: int, loads: Loads, queued: int, *, is_last: bool
    ) -> None:
        self.caller: int = caller
        self.version: int = version
        self.loads: Loads = loads
        self.queued: int = queued
        self.is_last: bool = is_last


class Answer:
    """What the service tells a calling process.

    Attributes:
        whole: What has changed, if something has.
        loads: What all others together have under way.
        callers: How many processes are calling.
    """

    __slots__ = ("callers", "loads", "whole")

    def __init__(self, whole: Whole | None, loads: Loads, callers: int) -> None:
        self.whole: Whole | None = whole
        self.loads: Loads = loads
        self.callers: int = callers


class ReplicaStatus:
    """One replica at one time.

    Attributes:
        id: Its number; none is used twice in a service.
        state: `starting`, `ready` or `draining`.
        mesh: Its actors, if they have started.
        outstanding: Calls under way, by what the callers said last.
        sessions: Sessions that are bound to it.
        age_s: Seconds since its start.
        generation: How many updates its service had seen when it started.
    """

    __slots__ = ("age_s", "generation", "id", "mesh", "outstanding", "sessions", "state")

    def __init__(
        self,
        id: int,
        state: str,
        mesh: Any,
        outstanding: int,
        sessions: int,
        age_s: float,
        generation: int,
    ) -> None:
        self.id: int = id
        self.state: str = state
        self.mesh: Any = mesh
        self.outstanding: int = outstanding
        self.sessions: int = sessions
        self.age_s: float = age_s
        self.generation: int = generation

    def __repr__(self) -> str:
        return (
            f"ReplicaStatus(id={self.id}, state={self.state!r}, outstanding={self.outstanding}, "
            f"sessions={self.sessions}, age_s={self.age_s:.1f}, generation={self.generation})"
        )


class ServiceStatus:
    """A service at one time.

    Attributes:
        name: Its name.
        num_replicas: How many replicas it should have.
        replicas: Those that there are.
        outstanding: Calls under way in all of them.
        queued: Calls that wait at their callers for room.
        callers: Processes that are calling.
        generation: How many updates there were.
        losses: How many replicas were lost since the start.
        last_error: What the latest of them was lost of.
    """

    __slots__ = (
        "callers",
        "generation",
        "last_error",
        "losses",
        "name",
        "num_replicas",
        "outstanding",
        "queued",
        "replicas",
    )

    def __init__(
        self,
        *,
        name: str,
        num_replicas: int,
        replicas: tuple[ReplicaStatus, ...],
        queued: int,
        callers: int,
        generation: int,
        losses: int,
        last_error: str,
    ) -> None:
        self.name: str = name
        self.num_replicas: int = num_replicas
        self.replicas: tuple[ReplicaStatus, ...] = replicas
        self.outstanding: int = sum(replica.outstanding for replica in replicas)
        self.queued: int = queued
        self.callers: int = callers
        self.generation: int = generation
        self.losses: int = losses
        self.last_error: str = last_error

    @property
    def num_ready(self) -> int:
        """How many replicas take calls."""
        return sum(replica.state == "ready" for replica in self.replicas)

    def __repr__(self) -> str:
        return (
            f"<ServiceStatus {self.name!r} {self.num_ready}/{self.num_replicas} ready, "
            f"{self.outstanding} outstanding, {self.queued} queued, {self.losses} lost>"
        )
