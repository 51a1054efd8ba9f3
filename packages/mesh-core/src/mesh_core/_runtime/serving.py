"""The message that the current thread or task serves.

Each message sets a context variable, so tasks and nested calls see their own message.
"""

from __future__ import annotations

from contextvars import ContextVar

from mesh_core._shapes.shape import Extent, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._actors.cell import ActorCell
    from mesh_core._core import Message

__all__ = ["Serving", "serving", "set_serving"]


class Serving:
    """One message that an actor is serving."""

    __slots__ = ("cell", "extent", "message", "number")

    def __init__(self, cell: ActorCell, message: Message | None, extent: Extent) -> None:
        self.cell: ActorCell = cell
        self.message: Message | None = message
        self.extent: Extent = extent
        # The number of the message in the recording of the actor, if it is recorded.
        self.number: int = 0

    @property
    def point(self) -> Point:
        """The rank of the receiver in the called slice; during the spawn, its rank in the mesh."""
        if self.message is None:
            return self.cell.point
        return Point(self.message.rank, self.extent)


_serving: ContextVar[Serving | None] = ContextVar("mesh_core.serving", default=None)
serving = _serving.get
set_serving = _serving.set
