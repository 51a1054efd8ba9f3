"""Where processes are in their job, for those who look after all of them."""

from __future__ import annotations

import time
from typing import NamedTuple

from mesh_core._program.runtime import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._meshes.mesh import HostMesh, ProcMesh

__all__ = ["Station", "host_agents", "host_numbers", "is_stopped", "leaving_hosts", "station"]


class Station(NamedTuple):
    """The place of a process in its job."""

    host: int
    """The number of the host in the job."""
    host_name: str
    """What the machine calls itself."""
    slot: int
    """The place on the host; 0 looks after it."""
    incarnation: int
    """How many processes had the place before."""
    mesh: int
    """The number of the process mesh in the job; 0 for what looks after a host."""
    mesh_name: str
    """The name that the process mesh was spawned under."""
    rank: int
    """The rank in that mesh."""


def station() -> Station:
    """Says where this process is in its job; starts Mesh in a program that has not used it yet."""
    identity = runtime().identity
    table = identity.table
    return Station(
        identity.host,
        identity.host_name,
        identity.slot,
        identity.incarnation,
        0 if table is None else table.uid,
        ("root" if identity.host == 0 else "agent") if table is None else table.name,
        identity.rank,
    )


def host_numbers(mesh: HostMesh | ProcMesh) -> tuple[int, ...]:
    """Gives the numbers in the job of the hosts of a mesh, in the order of `flatten`.

    For processes, those of `host_mesh`: as that they stand for the whole mesh that was spawned.
    """
    hosts: Any = getattr(mesh, "host_mesh", mesh)
    return tuple(hosts._hosts[at] for at in hosts._region)


def host_agents(hosts: HostMesh) -> ProcMesh:
    """Gives the processes that look after hosts; that of the program's own host is the program.

    What is spawned there must be small, never wait long, and run nothing of the user's.
    """
    return hosts._agents()


def is_stopped(procs: ProcMesh) -> bool:
    """Says whether processes were stopped here, in the process that spawned them.

    They are no more then, or end at this moment, and nothing brings them back.
    """
    current = procs._runtime
    return procs._uid in current.stopped_meshes or current.is_over


def leaving_hosts() -> dict[int, float]:
    """Returns the hosts whose workers were told to end, by number, and the seconds left to each.

    What runs on such a host is stopped after that time. In a process other than the program it is
    empty.
    """
    now = time.monotonic()
    return {host: max(0.0, until - now) for host, until in runtime().leaving_hosts.items()}
