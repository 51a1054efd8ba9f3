"""This process as a member of its job, for libraries that extend Mesh."""

from __future__ import annotations

import time
from typing import NamedTuple

from mesh_core._actors import active_calls, interceptors, local_actor, pending_calls
from mesh_core._observability import snapshot
from mesh_core._runtime import job_credentials
from mesh_core._runtime.runtime import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._actors.active_calls import Activity
    from mesh_core._actors.pending_calls import PendingCall
    from mesh_core._meshes.host_mesh import HostMesh
    from mesh_core._meshes.proc_mesh import ProcMesh
    from mesh_core._observability.events import Event

__all__ = ["CurrentProcess", "ProcessLocation", "current_process"]


class ProcessLocation(NamedTuple):
    """The location of a process in its job."""

    host: int
    """The number of the host in the job."""
    host_name: str
    """The host name of the machine."""
    slot: int
    """The slot on the host; slot 0 is its agent."""
    incarnation: int
    """The number of processes that used the slot before."""
    mesh: int
    """The number of the process mesh in the job; 0 for the agent of a host."""
    mesh_name: str
    """The name under which the process mesh was spawned."""
    rank: int
    """The rank in that mesh."""


class CurrentProcess:
    """This process as a member of its job: its location, hosts, actors and calls."""

    __slots__ = ()

    @staticmethod
    def activity() -> list[Activity]:
        """Return the activity of each initialized actor of this process that has not ended."""
        return active_calls.activity()

    @staticmethod
    def pending_calls() -> list[PendingCall]:
        """Return the outstanding replies of this process.

        The waiting actor and the duration are known only for actors that wait without a timeout.
        """
        return pending_calls.pending_calls()

    @staticmethod
    def snapshot() -> list[Event]:
        """Return `spawned` events of the meshes of this process and `started` events of its actors.

        Late subscribers use it to learn the current state. The times are the current time, and
        `spawned` events do not contain the owner.
        """
        return snapshot.snapshot()

    @staticmethod
    def has_credentials() -> bool:
        """Return whether the job has credentials and can therefore span machines.

        False in a program that has not used Mesh yet; the call does not start Mesh.
        """
        return job_credentials.has_credentials()

    @staticmethod
    def is_actor_ending() -> bool:
        """Return whether the running actor is terminating, so that it should not wait."""
        return interceptors.is_actor_ending()

    @staticmethod
    def is_actor_spawning(port: int) -> bool:
        """Return whether an actor is still to be spawned at a port of this process.

        Messages to that port wait until the actor has started.
        """
        return local_actor.is_actor_spawning(port)

    @staticmethod
    def local_actor(port: int) -> object | None:
        """Return an object that represents the live actor at a port of this process, or None.

        After a restart of the actor, the object is a different one.
        """
        return local_actor.local_actor(port)

    @staticmethod
    def location() -> ProcessLocation:
        """Return the location; starts Mesh in a program that has not used it yet."""
        identity = runtime().identity
        table = identity.table
        return ProcessLocation(
            identity.host,
            identity.host_name,
            identity.slot,
            identity.incarnation,
            0 if table is None else table.uid,
            ("root" if identity.host == 0 else "agent") if table is None else table.name,
            identity.rank,
        )

    @staticmethod
    def host_numbers(mesh: HostMesh | ProcMesh) -> tuple[int, ...]:
        """Return the host numbers of a mesh in the job, in the order of `flatten`.

        For processes, these are the numbers of `host_mesh`, which belongs to the whole mesh as
        spawned.
        """
        hosts: Any = getattr(mesh, "host_mesh", mesh)
        return tuple(hosts._hosts[at] for at in hosts._region)

    @staticmethod
    def host_agents(hosts: HostMesh) -> ProcMesh:
        """Return the agents of hosts as a mesh; the agent of the program's own host is the program.

        Anything spawned there must be small, must never wait long, and must not run user code.
        """
        return hosts._agents()

    @staticmethod
    def is_stopped(procs: ProcMesh) -> bool:
        """Return whether processes were stopped here, in the process that spawned them.

        Stopped processes are gone or about to exit, and are not restarted.
        """
        current = procs._runtime
        return procs._uid in current.stopped_meshes or current.is_over

    @staticmethod
    def draining_hosts() -> dict[int, float]:
        """Return the hosts whose workers are shutting down, by number, with the seconds left.

        Everything that still runs on such a host is stopped after that time. The result is empty
        in any process other than the program.
        """
        now = time.monotonic()
        return {host: max(0.0, until - now) for host, until in runtime().draining_hosts.items()}


#: This process.
current_process: CurrentProcess = CurrentProcess()
