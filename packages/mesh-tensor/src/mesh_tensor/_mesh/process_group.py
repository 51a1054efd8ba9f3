"""Groups of processes as arguments of remote functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mesh_core.spi import NeedsLayer

if TYPE_CHECKING:
    from mesh_tensor._mesh.device_mesh import DeviceMesh

__all__ = ["RemoteProcessGroup"]


@dataclass(frozen=True)
class RemoteProcessGroup:
    """Processes that differ along some dimensions of a mesh only.

    A remote function that gets it finds a `torch.distributed.ProcessGroup` in its place.

    Attributes:
        mesh: Of which mesh.
        dims: Along which dimensions.
    """

    mesh: DeviceMesh
    dims: tuple[str, ...]

    def __reduce__(self) -> Any:
        raise NeedsLayer("a group is made in its processes: pass it as an argument of its own")

    def size(self) -> int:
        """Gives how many processes are in one group."""
        return self.mesh.size(self.dims)
