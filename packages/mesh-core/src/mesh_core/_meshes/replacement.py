"""Replacement of a dead process, with the actors that it had."""

from __future__ import annotations

from mesh_core._errors import SpawnError
from mesh_core._meshes.actor_mesh import ActorMesh
from mesh_core._meshes.host_requests import start_again

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._meshes.proc_mesh import ProcMesh

__all__ = ["replace_lost"]


def replace_lost(procs: ProcMesh, index: int) -> bool:
    """Replace a rank if its process has died; return whether it had.

    Raises:
        SpawnError: Some of its actors were spawned by a previous program, with more data than the
            journal stores.
        HostDied: Its host is dead, and no standby worker is left.
    """
    if not start_again(procs, index):
        return False
    proc = procs._proc_of(index)
    ownership = procs._runtime.ownership
    problem: SpawnError | None = None
    for mesh in ownership.children_of(procs._table.owner[1]):
        if isinstance(mesh, ActorMesh) and mesh._table == procs._table:
            for lost in mesh._ranks_on(proc):
                try:
                    mesh._respawn(lost)
                except SpawnError as error:
                    # Continue with the remaining actors.
                    problem = error
                else:
                    ownership.restart_done(mesh._uid, lost, True)
    ownership.announce_restarts(proc)
    ownership.restart_done(procs._uid, index, True)
    if problem is not None:
        raise problem
    return True
