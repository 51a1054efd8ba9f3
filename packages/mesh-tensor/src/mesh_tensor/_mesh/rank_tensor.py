"""The coordinates of processes as a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._tensor.tensor import Tensor

__all__ = ["rank_tensor"]


def rank_tensor(mesh: DeviceMesh, dims: str | Sequence[str] | None) -> Tensor:
    """Return each process's row-major index along some dimensions, as a scalar of dtype int64.

    Raises:
        UnknownDim: The mesh has no such dimension.
    """
    return mesh._engine.rank(mesh, mesh._dims(dims))
