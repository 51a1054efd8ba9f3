"""Messages between a service and its callers: the replicas and their load."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from mesh_core._meshes.actor_mesh import ActorMesh

    # Outstanding calls and sessions by the number of a replica.
    Loads: TypeAlias = dict[int, tuple[int, int]]

__all__ = [
    "CUT",
    "DRAINED",
    "Member",
    "ReplicaStatus",
    "Report",
    "ReportReply",
    "ServiceStatus",
    "ServiceView",
]

# How a replica has retired: without a lost call, or possibly with some.
DRAINED, CUT = "drained", "cut"


class Member:
    """A replica as listed to callers.

    Attributes:
        id: Its number, unique within the service and never reused.
        mesh: Its actors.
        is_open: Whether it accepts new calls.
    """

    __slots__ = ("id", "is_open", "mesh")

    def __init__(self, id: int, mesh: ActorMesh[Any], is_open: bool) -> None:
        self.id: int = id
        self.mesh: ActorMesh[Any] = mesh
        self.is_open: bool = is_open


class ServiceView:
    """A snapshot of a service.

    Attributes:
        version: Increases with each change.
        members: The replicas that have started.
        retired: How the latest retired replicas have ended: `DRAINED` or `CUT`.
        is_closed: Whether the service accepts no more calls.
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
    """The report of a calling process to the service.

    Attributes:
        caller: A random number that identifies the process.
        version: The version that the process knows.
        loads: Its outstanding calls and its sessions.
        queued: The number of its calls that wait for capacity.
        is_last: Whether no further report follows unless the process calls again.
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


class ReportReply:
    """The reply of the service to a report.

    Attributes:
        view: The new snapshot, if something has changed.
        loads: The load of all other callers together.
        callers: The number of calling processes.
    """

    __slots__ = ("callers", "loads", "view")

    def __init__(self, view: ServiceView | None, loads: Loads, callers: int) -> None:
        self.view: ServiceView | None = view
        self.loads: Loads = loads
        self.callers: int = callers


class ReplicaStatus:
    """A snapshot of one replica.

    Attributes:
        id: Its number, unique within the service and never reused.
        state: `starting`, `ready` or `draining`.
        mesh: Its actors, if they have started.
        outstanding: Outstanding calls, as last reported by the callers.
        sessions: Sessions that are bound to it.
        age_s: Seconds since its start.
        generation: The number of updates of the service before its start.
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
    """A snapshot of a service for its owner.

    Attributes:
        name: Its name.
        num_replicas: The target number of replicas.
        replicas: The current replicas.
        outstanding: Outstanding calls of all replicas.
        queued: Calls that wait at their callers for capacity.
        callers: The number of calling processes.
        generation: The number of updates.
        losses: The number of replicas lost since the start.
        last_error: The error of the latest loss.
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
        """The number of replicas that accept calls."""
        return sum(replica.state == "ready" for replica in self.replicas)

    def __repr__(self) -> str:
        return (
            f"<ServiceStatus {self.name!r} {self.num_ready}/{self.num_replicas} ready, "
            f"{self.outstanding} outstanding, {self.queued} queued, {self.losses} lost>"
        )
