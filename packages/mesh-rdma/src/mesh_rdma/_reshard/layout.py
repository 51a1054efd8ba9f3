"""The distribution of an array over many buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mesh_rdma._reshard.box import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Layout", "Replicate", "Shard"]


@dataclass(frozen=True)
class Shard:
    """Along a dimension of the mesh, each rank has a part of one dimension of the array.

    Attributes:
        dim: The dimension of the array; a negative number counts from the last one.
    """

    dim: int


@dataclass(frozen=True)
class Replicate:
    """Along a dimension of the mesh, all ranks have the same part."""


@dataclass(frozen=True)
class Layout:
    """An array that is distributed in row-major parts over a list of buffers.

    Attributes:
        shape: The shape of the whole array.
        itemsize: The size of an element in bytes.
        shards: The part of the array in each buffer; several buffers may have the same part.
        starts: The offset of the part in each buffer, in bytes; 0 by default.

    Raises:
        ValueError: A part exceeds the array.

    Example:
        >>> trainers = Layout.of((4096, 1024), 4, [4], [Shard(0)])    # rows over 4 processes
        >>> generators = Layout.of((4096, 1024), 4, [2, 2], [Shard(0), Shard(1)])
    """

    shape: tuple[int, ...]
    itemsize: int
    shards: tuple[Box, ...]
    starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.itemsize <= 0:
            raise ValueError(f"invalid itemsize {self.itemsize}: pass at least 1")
        shards = tuple(Box(tuple(one[0]), tuple(one[1])) for one in self.shards)
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "shards", shards)
        object.__setattr__(self, "starts", tuple(self.starts) or (0,) * len(shards))
        if len(self.starts) != len(shards):
            raise ValueError(
                f"got {len(self.starts)} starts for {len(shards)} shards: pass one for each"
            )
        for place, box in enumerate(shards):
            _check_inside(place, box, self.shape)

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        itemsize: int,
        mesh: Sequence[int] | Mapping[str, int],
        placements: Sequence[Any],
    ) -> Layout:
        """Create the layout of an array over a mesh, sharded like DTensor and `torch.chunk`.

        Args:
            shape: The shape of the whole array.
            itemsize: The size of an element in bytes.
            mesh: The sizes of the mesh; the buffers are in the order of its ranks, row-major.
            placements: A `Shard` or `Replicate` for each dimension of the mesh, of this package or
                of torch.

        Raises:
            ValueError: The number of placements differs from the number of dimensions, or a
                placement has another type.
        """
        sizes = tuple(mesh.values()) if isinstance(mesh, Mapping) else tuple(mesh)
        if len(sizes) != len(placements):
            raise ValueError(
                f"got {len(placements)} placements for a mesh of {len(sizes)} dimensions: pass one"
                " for each"
            )
        boxes = [Box((0,) * len(shape), tuple(shape))]
        for size, placement in zip(sizes, placements, strict=True):
            dim = _sharded_dim(placement, len(shape))
            boxes = [_cut(box, dim, rank, size) for box in boxes for rank in range(size)]
        return cls(tuple(shape), itemsize, tuple(boxes))

    def at(self, starts: Sequence[int]) -> Layout:
        """Return the same layout with another offset in each buffer.

        Raises:
            ValueError: The number of offsets differs from the number of parts.
        """
        return replace(self, starts=tuple(starts))

    def slices(self, place: int) -> tuple[slice, ...]:
        """Return the part of one buffer, as an index for numpy and torch."""
        return self.shards[place].slices

    def nbytes(self, place: int) -> int:
        """Return the size of the part of one buffer, in bytes."""
        return self.shards[place].item_count * self.itemsize


def _check_inside(place: int, box: Box, shape: tuple[int, ...]) -> None:
    is_box = len(box.offsets) == len(box.sizes) == len(shape)
    if not is_box or any(
        offset < 0 or size < 0 or offset + size > whole
        for offset, size, whole in zip(box.offsets, box.sizes, shape, strict=True)
    ):
        raise ValueError(f"shard {place}, {box}, is not inside of an array of {shape}")


def _sharded_dim(placement: Any, dim_count: int) -> int | None:
    """Return the sharded dimension, or None; placements of torch have the same attributes."""
    dim = getattr(placement, "dim", None)
    if isinstance(dim, int):
        if not -dim_count <= dim < dim_count:
            raise ValueError(f"{placement} of an array of {dim_count} dimensions")
        return dim % dim_count
    if type(placement).__name__ == "Replicate":
        return None
    raise ValueError(f"invalid placement {placement!r}: pass Shard(dim) or Replicate()")


def _cut(box: Box, dim: int | None, rank: int, size: int) -> Box:
    if dim is None:
        return box
    whole = box.sizes[dim]
    length = -(-whole // size)
    first = min(rank * length, whole)
    end = min(first + length, whole)
    offsets, sizes = list(box.offsets), list(box.sizes)
    offsets[dim] += first
    sizes[dim] = end - first
    return Box(tuple(offsets), tuple(sizes))
