"""A slot of a host, which a process and its replacements occupy one after the other."""

from __future__ import annotations

from mesh_core._shapes.shape import Extent, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._meshes.start_request import StartRequest

__all__ = ["Slot"]


class Slot:
    """A slot and the state of its process, for the agent of the host.

    Attributes:
        request: The request that started the mesh of the process.
        rank: The rank of the process in its mesh.
        incarnation: The number of the process among those of this slot.
        is_alive: Whether the process has not exited.
        is_stopping: Whether the process was requested to stop.
        silent_count: The number of waits for the process that timed out since it was connected.
        why_ended: Why the agent killed the process without a request to stop.
        unreachable_s: Seconds without a connection to the process, after it has had one.
    """

    __slots__ = (
        "incarnation",
        "is_alive",
        "is_stopping",
        "rank",
        "request",
        "silent_count",
        "unreachable_s",
        "why_ended",
    )

    def __init__(self, request: StartRequest, rank: int, incarnation: int) -> None:
        self.request: StartRequest = request
        self.rank: int = rank
        self.incarnation: int = incarnation
        self._reset()

    def _reset(self) -> None:
        self.is_alive: bool = True
        self.is_stopping: bool = False
        self.silent_count: int = 0
        self.why_ended: str | None = None
        self.unreachable_s: float = 0.0

    def begin_incarnation(self) -> None:
        """Expect a new process, because the previous one has exited."""
        self.incarnation += 1
        self._reset()

    @property
    def unresponsive_timeout_s(self) -> float:
        """Seconds that the process may be silent before it is killed."""
        limit_s: float = self.request.config["unresponsive_timeout_s"]
        return limit_s

    @property
    def point(self) -> Point:
        """The coordinates of the process in its mesh."""
        region = self.request.table.region
        return Point(self.rank, Extent(region.labels, region.sizes))

    @property
    def log_name(self) -> str:
        """The name of the process in its log lines, which has the mesh and the coordinates."""
        table = self.request.table
        if not table.region.labels:
            return table.name
        point = self.point
        # `mesh_core._logging.printer.split_name` parses this format.
        coordinates = ", ".join(f"{label}: {at}/{point.size(label)}" for label, at in point.items())
        return f"{table.name}{{{coordinates}}}"
