"""Where each process is, as a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._tensor.tensor import Tensor

__all__ = ["rank_tensor"]


def rank_tensor(mesh: DeviceMesh, dims: str | Sequence[str] | None) -> Tensor:
    """Gives the coordinate of each process along dimensions, row by row; a scalar of int64.

    Raises:
        UnknownDim: There is no such dimension.
    """
    return mesh._engine.rank(mesh, mesh._dims(dims))
