"""Journal entries, which the agents of hosts store for a successor of the program."""

from __future__ import annotations

from mesh_core._meshes.host_mesh import HostMesh
from mesh_core._serialization.pickler import decode, encode_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from mesh_core._core import Region
    from mesh_core._hosts.place import Place
    from mesh_core._hosts.standby import StandbyWorker
    from mesh_core._meshes.mesh_entry import MeshEntry

    Entry: TypeAlias = "HostsEntry | PlaceEntry | StandbyEntry | MeshEntry"

__all__ = ["HostsEntry", "PlaceEntry", "StandbyEntry", "decode_entry", "encode_entry"]


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


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes that `decode_entry` parses; agents store them without decoding."""
    return encode_value(entry, 1 << 60)[0]


def decode_entry(body: bytes) -> Entry:
    """Parse the result of `encode_entry`."""
    entry: Entry = decode(body)
    return entry
