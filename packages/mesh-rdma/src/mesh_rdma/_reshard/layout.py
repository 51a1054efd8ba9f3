"""Which buffer has which part of an array that lies in many."""

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
    """Along a dimension of the mesh, each has its part of one dimension of the array.

    Attributes:
        dim: The dimension of the array; negative counts from the last.
    """

    dim: int


@dataclass(frozen=True)
class Replicate:
    """Along a dimension of the mesh, each has the same."""


@dataclass(frozen=True)
class Layout:
    """An array that lies in pieces, one in each of a list of buffers, row-major.

    Attributes:
        shape: The sizes of the whole array.
        itemsize: The bytes of an element.
        shards: The part of the array that each buffer has; several may have the same.
        starts: Where in each buffer its part begins, in bytes; nothing is at the beginning.

    Raises:
        ValueError: A part is not in the array.

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
            raise ValueError(f"elements of {self.itemsize} bytes: they have one at least")
        shards = tuple(Box(tuple(one[0]), tuple(one[1])) for one in self.shards)
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "shards", shards)
        object.__setattr__(self, "starts", tuple(self.starts) or (0,) * len(shards))
        if len(self.starts) != len(shards):
            raise ValueError(f"{len(self.starts)} starts of {len(shards)} shards: give one of each")
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
        """Makes the layout of an array over a mesh, as DTensor and `torch.chunk` would cut it.

        Args:
            shape: The sizes of the whole array.
            itemsize: The bytes of an element.
            mesh: The sizes of the mesh: buffers come in the order of its ranks, row-major.
            placements: For each dimension of the mesh a `Shard` or `Replicate`, of this package or
                of torch.

        Raises:
            ValueError: There is not one placement for each dimension, or one that is neither.
        """
        sizes = tuple(mesh.values()) if isinstance(mesh, Mapping) else tuple(mesh)
        if len(sizes) != len(placements):
            raise ValueError(
                f"{len(placements)} placements on a mesh of {len(sizes)} dimensions: "
                f"give one for each"
            )
        boxes = [Box((0,) * len(shape), tuple(shape))]
        for size, placement in zip(sizes, placements, strict=True):
            dim = _sharded_dim(placement, len(shape))
            boxes = [_cut(box, dim, rank, size) for box in boxes for rank in range(size)]
        return cls(tuple(shape), itemsize, tuple(boxes))

    def at(self, starts: Sequence[int]) -> Layout:
        """Gives the same parts, each from a byte of its buffer on.

        Raises:
            ValueError: There is not one start for each part.
        """
        return replace(self, starts=tuple(starts))

    def slices(self, place: int) -> tuple[slice, ...]:
        """Gives the part of one buffer, as what numpy and torch take between brackets."""
        return self.shards[place].slices

    def nbytes(self, place: int) -> int:
        """Gives the bytes of the part of one buffer."""
        return self.shards[place].item_count * self.itemsize


def _check_inside(place: int, box: Box, shape: tuple[int, ...]) -> None:
    is_box = len(box.offsets) == len(box.sizes) == len(shape)
    if not is_box or any(
        offset < 0 or size < 0 or offset + size > whole
        for offset, size, whole in zip(box.offsets, box.sizes, shape, strict=True)
    ):
        raise ValueError(f"shard {place}, {box}, is not inside of an array of {shape}")


def _sharded_dim(placement: Any, dim_count: int) -> int | None:
    """Gives the dimension that is cut; None if none is. Torch's own placements are alike."""
    dim = getattr(placement, "dim", None)
    if isinstance(dim, int):
        if not -dim_count <= dim < dim_count:
            raise ValueError(f"{placement} of an array of {dim_count} dimensions")
        return dim % dim_count
    if type(placement).__name__ == "Replicate":
        return None
    raise ValueError(f"{placement!r} is no place for an array: give Shard(dim) or Replicate()")


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
