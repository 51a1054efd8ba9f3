"""Process groups as arguments of remote functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mesh_core.spi import RequiresTensorEngine

if TYPE_CHECKING:
    from mesh_tensor._mesh.device_mesh import DeviceMesh

__all__ = ["RemoteProcessGroup"]


@dataclass(frozen=True)
class RemoteProcessGroup:
    """Groups of processes that differ only in some dimensions of a mesh.

    A remote function receives a `torch.distributed.ProcessGroup` for this argument.

    Attributes:
        mesh: The mesh of the processes.
        dims: The dimensions along which the members of a group differ.
    """

    mesh: DeviceMesh
    dims: tuple[str, ...]

    def __reduce__(self) -> Any:
        raise RequiresTensorEngine(
            "a process group cannot be pickled: pass it as a separate argument"
        )

    def size(self) -> int:
        """Return the number of processes in one group."""
        return self.mesh.size(self.dims)
