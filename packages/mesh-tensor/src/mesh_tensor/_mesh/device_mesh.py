"""Processes that tensors are on: a part of a proc mesh, with the engine behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesh_core import Region
from mesh_core.spi import MeshTrait, NeedsLayer
from mesh_tensor._errors import WrongMesh, WrongStream
from mesh_tensor._mesh.activation import active_stream

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from contextlib import AbstractContextManager

    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._mesh.process_group import RemoteProcessGroup
    from mesh_tensor._streams.slot_allocator import Lane
    from mesh_tensor._streams.stream import Stream
    from mesh_tensor._tensor.tensor import Tensor

__all__ = ["DeviceMesh", "mixed_meshes"]


class DeviceMesh(MeshTrait):
    """Processes with named dimensions that tensors are made on and operations run on.

    There is one object for each part of the processes of one engine, and one more for each stream
    that works there: tensors know their stream by it. Programs see that of the default stream.
    """

    __slots__ = ("_encoded", "_engine", "_lane", "_region")

    def __init__(self, engine: Any, region: Region, lane: Any) -> None:
        self._engine: Engine = engine
        self._lane: Lane = lane
        self._region: Region = region
        self._encoded = region.encode()

    def _with_region(self, region: Region) -> DeviceMesh:
        return self._engine.mesh(region, self._lane)

    def _on(self, stream: Stream | None) -> DeviceMesh:
        """Gives the same as a stream has it; as the default one does where none is said."""
        if stream is self._lane.stream:
            return self
        engine = self._engine
        return engine.mesh(self._region, engine.lanes.of(stream))

    def activate(self) -> AbstractContextManager[DeviceMesh]:
        """Has tensors that are made within `with` made on these processes."""
        from mesh_tensor._mesh.activation import activate

        return activate(self)

    def rank(self, dims: str | Sequence[str] | None = None) -> Tensor:
        """Gives where each process is along a dimension, or along several, row by row.

        Returns:
            A scalar of int64, on each process another.

        Raises:
            UnknownDim: There is no such dimension.
        """
        from mesh_tensor._mesh.rank_tensor import rank_tensor

        return rank_tensor(self._on(active_stream.get()), dims)

    def process_group(self, dims: str | Sequence[str] | None = None) -> RemoteProcessGroup:
        """Gives the groups along some dimensions, or along all, to pass to a remote function.

        Raises:
            UnknownDim: There is no such dimension.
        """
        from mesh_tensor._mesh.process_group import RemoteProcessGroup

        return RemoteProcessGroup(self, self._dims(dims))

    def _dims(self, dims: str | Sequence[str] | None) -> tuple[str, ...]:
        """Gives the dimensions that are said, or all where none is.

        Raises:
            UnknownDim: There is no such dimension.
        """
        chosen = (dims,) if isinstance(dims, str) else tuple(dims or self.sizes)
        self.size(chosen)
        return chosen

    def __repr__(self) -> str:
        sizes = ", ".join(f"{label}={size}" for label, size in self.sizes.items())
        return f"<DeviceMesh {sizes or 'of one process'}>"

    def __reduce__(self) -> Any:
        raise NeedsLayer(
            "a device mesh stays in the program that controls it: pass it as an argument of its "
            "own to a remote function, or to an endpoint of an actor on its processes"
        )


def mixed_meshes(what: object, meshes: Collection[DeviceMesh]) -> WrongMesh | WrongStream:
    """Gives the error of an operation on tensors of several meshes, or of several streams."""
    if len({(mesh._engine, mesh._region) for mesh in meshes}) > 1:
        names = " and ".join(sorted(map(repr, meshes)))
        return WrongMesh(f"{what} got tensors of {names}: move one with to_mesh")
    names = " and ".join(sorted(mesh._lane.stream.name for mesh in meshes))
    return WrongStream(f"{what} got tensors of the streams {names}: borrow one with stream.borrow")
