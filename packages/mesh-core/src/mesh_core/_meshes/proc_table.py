"""The location of the processes of a mesh."""

from __future__ import annotations

from mesh_core._serialization.wire import proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._processes.command import BootstrapCommand
    from mesh_core._shapes.shape import Region

__all__ = ["ProcTable"]


class ProcTable:
    """The processes of one mesh as it was spawned: consecutive slots on each of its hosts.

    A rank keeps its slot permanently, so a table never changes: a process that replaces a dead one
    has the same address.

    Attributes:
        uid: The number of the mesh in its job.
        name: The name under which it was spawned.
        hosts: The hosts in rank order, each with its first slot.
        per_host: The number of processes on each host.
        region: All ranks, with their dimensions.
        owner: The actor that owns the mesh, as process and port.
        host_name: The name of the first host.
        command: The command of the hosts on which the processes were spawned. Processes that they
            spawn on the same hosts use it, too. None for the template.
    """

    __slots__ = ("command", "host_name", "hosts", "name", "owner", "per_host", "region", "uid")

    def __init__(
        self,
        uid: int,
        name: str,
        hosts: tuple[tuple[int, int], ...],
        per_host: int,
        region: Region,
        owner: tuple[int, int],
        host_name: str,
        command: BootstrapCommand | None = None,
    ) -> None:
        self.uid: int = uid
        self.name: str = name
        self.hosts: tuple[tuple[int, int], ...] = hosts
        self.per_host: int = per_host
        self.region: Region = region
        self.owner: tuple[int, int] = owner
        self.host_name: str = host_name
        self.command: BootstrapCommand | None = command

    def proc(self, rank: int) -> int:
        """Return the process of a rank."""
        host, first_slot = self.hosts[rank // self.per_host]
        return proc_id(host, first_slot + rank % self.per_host)

    def rank_of(self, proc: int) -> int | None:
        """Return the rank of a process, or None if it is not part of this mesh."""
        for index, (host, first_slot) in enumerate(self.hosts):
            offset = (proc & 0xFFFF_FFFF) - first_slot
            if proc >> 32 == host and 0 <= offset < self.per_host:
                return index * self.per_host + offset
        return None

    def procs_on(self, host: int) -> list[int]:
        """Return the processes on a host."""
        return [
            proc_id(host, first_slot + offset)
            for number, first_slot in self.hosts
            if number == host
            for offset in range(self.per_host)
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcTable) and self.uid == other.uid

    def __hash__(self) -> int:
        return hash(self.uid)
