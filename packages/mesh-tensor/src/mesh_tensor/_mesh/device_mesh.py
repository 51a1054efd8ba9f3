"""Meshes of processes that hold tensors: a region of a proc mesh, and its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesh_core import Region
from mesh_core.spi import MeshTrait, RequiresTensorEngine
from mesh_tensor._errors import WrongMesh, WrongStream
from mesh_tensor._mesh.activation import activate, active_stream
from mesh_tensor._mesh.process_group import RemoteProcessGroup

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from contextlib import AbstractContextManager

    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._streams.slot_allocator import StreamSlots
    from mesh_tensor._streams.stream import Stream
    from mesh_tensor._tensor.tensor import Tensor

__all__ = ["DeviceMesh", "mixed_meshes"]


class DeviceMesh(MeshTrait):
    """Processes with named dimensions, on which tensors are created and operations run.

    An engine has one object for each region of its processes, and another one for each stream that
    works on the region: a tensor knows its stream by its mesh. Programs see the object of the
    default stream.
    """

    __slots__ = ("_encoded", "_engine", "_region", "_stream_slots")

    def __init__(self, engine: Any, region: Region, stream_slots: Any) -> None:
        self._engine: Engine = engine
        self._stream_slots: StreamSlots = stream_slots
        self._region: Region = region
        self._encoded = region.encode()

    def _with_region(self, region: Region) -> DeviceMesh:
        return self._engine.mesh(region, self._stream_slots)

    def _on(self, stream: Stream | None) -> DeviceMesh:
        """Return the same region for a stream, or for the default stream if None."""
        if stream is self._stream_slots.stream:
            return self
        engine = self._engine
        return engine.mesh(self._region, engine.stream_table.of(stream))

    def activate(self) -> AbstractContextManager[DeviceMesh]:
        """Create new tensors on these processes until the `with` block ends."""
        return activate(self)

    def rank(self, dims: str | Sequence[str] | None = None) -> Tensor:
        """Return each process's coordinate in one dimension, or its row-major index in several.

        Returns:
            A scalar of dtype int64 that is different on each process along these dimensions.

        Raises:
            UnknownDim: The mesh has no such dimension.
        """
        return self._on(active_stream.get())._rank(dims)

    def process_group(self, dims: str | Sequence[str] | None = None) -> RemoteProcessGroup:
        """Return the groups along some or all dimensions, to be passed to a remote function.

        Raises:
            UnknownDim: The mesh has no such dimension.
        """
        return RemoteProcessGroup(self, self._dims(dims))

    def _rank(self, dims: str | Sequence[str] | None) -> Tensor:
        """Return each process's coordinate, on the stream of this object; see `rank`."""
        return self._engine.rank(self, self._dims(dims))

    def _dims(self, dims: str | Sequence[str] | None) -> tuple[str, ...]:
        """Normalize an argument to a tuple of dimensions; None means all.

        Raises:
            UnknownDim: The mesh has no such dimension.
        """
        chosen = (dims,) if isinstance(dims, str) else tuple(dims or self.sizes)
        self.size(chosen)
        return chosen

    def __repr__(self) -> str:
        sizes = ", ".join(f"{label}={size}" for label, size in self.sizes.items())
        return f"<DeviceMesh {sizes or 'of one process'}>"

    def __reduce__(self) -> Any:
        raise RequiresTensorEngine(
            "a device mesh cannot be pickled: pass it as a separate argument to a remote function,"
            " or to an endpoint of an actor on its processes"
        )


def mixed_meshes(what: object, meshes: Collection[DeviceMesh]) -> WrongMesh | WrongStream:
    """Return the error for an operation on tensors of several meshes or several streams."""
    if len({(mesh._engine, mesh._region) for mesh in meshes}) > 1:
        names = " and ".join(sorted(map(repr, meshes)))
        return WrongMesh(f"{what} got tensors of {names}: move one with to_mesh")
    names = " and ".join(sorted(mesh._stream_slots.stream.name for mesh in meshes))
    return WrongStream(f"{what} got tensors of the streams {names}: borrow one with stream.borrow")
