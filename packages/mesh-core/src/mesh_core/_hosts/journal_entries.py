"""Journal entries, which the agents of hosts store for a successor of the program."""

from __future__ import annotations

from mesh_core._calls.actor import Actor
from mesh_core._meshes.actor_mesh import ActorMesh
from mesh_core._meshes.host_mesh import HostMesh
from mesh_core._meshes.proc_mesh import ProcMesh
from mesh_core._serialization.pickler import decode, encode_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from mesh_core._core import Region
    from mesh_core._hosts.place import Place
    from mesh_core._hosts.standby import StandbyWorker
    from mesh_core._meshes.proc_table import ProcTable
    from mesh_core._meshes.start_request import StartRequest
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._supervision.policy import RestartPolicy

    Entry: TypeAlias = "HostsEntry | PlaceEntry | StandbyEntry | MeshEntry"

__all__ = [
    "HostsEntry",
    "MeshEntry",
    "PlaceEntry",
    "StandbyEntry",
    "decode_entry",
    "encode_entry",
]

# The request that spawned a mesh is stored up to this size. A successor cannot respawn ranks of a
# mesh with a larger request.
_REQUEST_BYTES_MAX = 1 << 20


class HostsEntry:
    """Workers that were attached together.

    Attributes:
        hosts: Their numbers.
        region: Their shape.
    """

    __slots__ = ("hosts", "region")

    def __init__(self, hosts: tuple[int, ...], region: Region) -> None:
        self.hosts: tuple[int, ...] = hosts
        self.region: Region = region

    def mesh(self) -> HostMesh:
        """Return the handle of the hosts."""
        return HostMesh(self.hosts, self.region, None)


class PlaceEntry:
    """A host.

    Attributes:
        host: Its number.
        address: The address of its current worker.
        gateway: The address of the worker that forwards the program's connections to it; None for
            none.
        epoch: The number of machines that served as this host before.
        orphan_grace_s: Its orphan grace period in seconds.
    """

    __slots__ = ("address", "epoch", "gateway", "host", "orphan_grace_s")

    def __init__(self, place: Place) -> None:
        self.host: int = place.host
        self.address: str = str(place.address)
        self.gateway: str | None = None if place.gateway is None else str(place.gateway)
        self.epoch: int = place.epoch
        self.orphan_grace_s: float = place.orphan_grace_s


class StandbyEntry:
    """A standby worker.

    Attributes:
        number: Its number among the standby workers of the job.
        address: Its address.
        gateway: The address of the worker that forwards the program's connections to it; None for
            none.
        orphan_grace_s: Its orphan grace period in seconds.
    """

    __slots__ = ("address", "gateway", "number", "orphan_grace_s")

    def __init__(self, worker: StandbyWorker) -> None:
        self.number: int = worker.number
        self.address: str = str(worker.address)
        self.gateway: str | None = None if worker.gateway is None else str(worker.gateway)
        self.orphan_grace_s: float = worker.orphan_grace_s


class MeshEntry:
    """A mesh of processes, or of actors in them.

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
        self, mesh: ProcMesh | ActorMesh[Any], policy: RestartPolicy, runtime: Runtime
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
            self.request = _small(runtime.spawn_requests.get(mesh._uid))

    def mesh(self) -> tuple[ProcMesh | ActorMesh[Any], Exception | None]:
        """Return the handle, and the exception if its class could not be loaded."""
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


def _small(request: Any) -> tuple[bytes, list[bytes], int] | None:
    if request is None:
        return None
    body, buffers, window = request
    if len(body) + sum(memoryview(part).nbytes for part in buffers) > _REQUEST_BYTES_MAX:
        return None
    return body, [bytes(part) for part in buffers], window


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes that `decode_entry` parses; agents store them without decoding."""
    return encode_value(entry, 1 << 60)[0]


def decode_entry(body: bytes) -> Entry:
    """Parse the result of `encode_entry`."""
    entry: Entry = decode(body)
    return entry
