"""The knowledge of an owner about a mesh, in a form that another process can take over."""

from __future__ import annotations

from mesh_core._calls.actor import Actor
from mesh_core._meshes.actor_mesh import ActorMesh
from mesh_core._meshes.proc_mesh import ProcMesh
from mesh_core._serialization.pickler import decode, encode_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._core import Region
    from mesh_core._meshes.proc_table import ProcTable
    from mesh_core._meshes.start_request import StartRequest
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._supervision.policy import RestartPolicy

__all__ = ["MeshEntry"]


class MeshEntry:
    """A mesh of processes, or of actors in them.

    Args:
        mesh: The mesh.
        policy: The restart policy.
        runtime: The process that owns it.
        request_bytes_max: The maximum size of the request that spawned the actors. With a larger
            one, the next owner cannot spawn ranks again.

    Attributes:
        name: The name under which it was spawned.
        table: The processes.
        policy: The restart policy.
        actors: Port, region, owner and window of actors; None for processes.
        cls: The pickled class of the actors, separate so that a program without the class can read
            the rest.
        request: The request that spawned the actors: pickled request, large buffers, window; None
            if it exceeds the size limit.
        start: The request that started the processes.
    """

    __slots__ = ("actors", "cls", "name", "policy", "request", "start", "table")

    def __init__(
        self,
        mesh: ProcMesh | ActorMesh[Any],
        policy: RestartPolicy,
        runtime: Runtime,
        request_bytes_max: int | None = None,
    ) -> None:
        self.name: str = mesh._name
        self.table: ProcTable = mesh._table
        self.policy: RestartPolicy = policy
        self.actors: tuple[int, Region, tuple[int, int], int] | None = None
        self.cls: bytes = b""
        self.request: tuple[bytes, list[bytes], int] | None = None
        self.start: StartRequest | None = runtime.start_requests.get(mesh._uid)
        if isinstance(mesh, ActorMesh):
            self.actors = (mesh._port, mesh._region, mesh._owner_address, mesh._window)
            self.cls = encode_value(mesh._cls, 1 << 60)[0]
            self.request = _portable(runtime.spawn_requests.get(mesh._uid), request_bytes_max)

    def adopt(
        self, runtime: Runtime, owner: int
    ) -> tuple[ProcMesh | ActorMesh[Any], Exception | None]:
        """Make the mesh one that this process owns.

        Args:
            runtime: This process.
            owner: The port of the actor that owns it, or 0 for the program.

        Returns:
            The handle, and the exception if its class could not be loaded.
        """
        mesh, problem = self._mesh()
        if self.request is not None:
            body, parts, window = self.request
            buffers = [memoryview(part) for part in parts]
            runtime.spawn_requests[mesh._uid] = (body, buffers, window)
        if self.start is not None:
            runtime.start_requests[mesh._uid] = self.start
        runtime.ownership.spawned(owner, mesh, self.policy)
        return mesh, problem

    def _mesh(self) -> tuple[ProcMesh | ActorMesh[Any], Exception | None]:
        if self.actors is None:
            return ProcMesh(self.table, self.table.region), None
        cls: type[Actor] = Actor
        problem = None
        try:
            cls = decode(self.cls)
        except Exception as error:
            problem = error
        port, region, owner, window = self.actors
        procs = ProcMesh(self.table, self.table.region)
        return ActorMesh(port, self.name, cls, procs, region, owner, window), problem


def _portable(request: Any, bytes_max: int | None) -> tuple[bytes, list[bytes], int] | None:
    if request is None:
        return None
    body, buffers, window = request
    size = len(body) + sum(memoryview(part).nbytes for part in buffers)
    if bytes_max is not None and size > bytes_max:
        return None
    return body, [bytes(part) for part in buffers], window
