"""The identity of a process in its job."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from mesh_core._meshes.proc_table import ProcTable

__all__ = ["Identity"]


class Identity:
    """The identity of a process, which it gets from its host when it starts.

    Attributes:
        host: The number of the host in the job.
        host_name: The host name of the machine.
        slot: The slot on the host; slot 0 is its agent.
        incarnation: The number of processes that used the slot before; the bits from `EPOCH_SHIFT`
            on contain the epoch of the host.
        job: The job, 16 bytes.
        token: The secret of the job, 32 bytes.
        directory: The directory in which the host's processes find each other.
        table: The process mesh of this process; None for an agent.
        rank: The rank of this process in that mesh.
        outlives_root: Whether everything that the program owns here waits for a successor if the
            program is lost.
    """

    __slots__ = (
        "directory",
        "host",
        "host_name",
        "incarnation",
        "job",
        "outlives_root",
        "rank",
        "slot",
        "table",
        "token",
    )

    def __init__(
        self,
        *,
        host: int,
        host_name: str,
        slot: int,
        incarnation: int,
        job: bytes,
        token: bytes,
        directory: Path,
        table: ProcTable | None = None,
        rank: int = 0,
        outlives_root: bool = False,
    ) -> None:
        self.host: int = host
        self.host_name: str = host_name
        self.slot: int = slot
        self.incarnation: int = incarnation
        self.job: bytes = job
        self.token: bytes = token
        self.directory: Path = directory
        self.table: ProcTable | None = table
        self.rank: int = rank
        self.outlives_root: bool = outlives_root
