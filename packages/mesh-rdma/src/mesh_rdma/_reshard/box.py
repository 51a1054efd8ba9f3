"""Boxes of array indices: intersection, difference and memory layout."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

__all__ = ["Box", "Rows", "rows_of"]


class Box(NamedTuple):
    """A rectangular part of an array.

    Attributes:
        offsets: The first index in each dimension.
        sizes: The number of indices in each dimension.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def item_count(self) -> int:
        """The number of elements."""
        return prod(self.sizes)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part as an index for numpy and torch."""
        pairs = zip(self.offsets, self.sizes, strict=True)
        return tuple(slice(offset, offset + size) for offset, size in pairs)

    def intersection(self, other: Box) -> Box | None:
        """Return the intersection of both boxes, or None if it is empty."""
        offsets, sizes = [], []
        for a, n, b, m in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True):
            first = a if a > b else b
            size = min(a + n, b + m) - first
            if size <= 0:
                return None
            offsets.append(first)
            sizes.append(size)
        return Box(tuple(offsets), tuple(sizes))

    def without(self, part: Box) -> list[Box]:
        """Return the difference of the box and a part of it, as disjoint boxes."""
        left = []
        offsets, sizes = list(self.offsets), list(self.sizes)
        for dim, (first, size) in enumerate(zip(part.offsets, part.sizes, strict=True)):
            before = first - offsets[dim]
            behind = sizes[dim] - before - size
            if before:
                left.append(Box(tuple(offsets), (*sizes[:dim], before, *sizes[dim + 1 :])))
            if behind:
                start = (*offsets[:dim], first + size, *offsets[dim + 1 :])
                left.append(Box(start, (*sizes[:dim], behind, *sizes[dim + 1 :])))
            offsets[dim], sizes[dim] = first, size
        return left


class Rows(NamedTuple):
    """The memory layout of a box in two buffers.

    Attributes:
        from_: The offset of the first row in the source, in bytes.
        to: The offset of the first row in the destination, in bytes.
        row_len: The number of bytes that are contiguous in both.
        dims: For each dimension of rows, outermost first: the count, and the strides in bytes in
            the source and in the destination.
    """

    from_: int
    to: int
    row_len: int
    dims: tuple[tuple[int, int, int], ...]


def rows_of(part: Box, source: Box, place: Box, itemsize: int) -> Rows:
    """Return the layout of a common part of two boxes, each contiguous and row-major in memory."""
    from_, to = 0, 0
    from_stride = to_stride = itemsize
    row_len = itemsize
    dims: list[tuple[int, int, int]] = []
    for dim in reversed(range(len(part.sizes))):
        count = part.sizes[dim]
        from_ += (part.offsets[dim] - source.offsets[dim]) * from_stride
        to += (part.offsets[dim] - place.offsets[dim]) * to_stride
        if count != 1:
            if not dims and from_stride == row_len == to_stride:
                row_len *= count
            elif dims and _continues(dims[0], from_stride, to_stride):
                inner = dims[0]
                dims[0] = (count * inner[0], inner[1], inner[2])
            else:
                dims.insert(0, (count, from_stride, to_stride))
        from_stride *= source.sizes[dim]
        to_stride *= place.sizes[dim]
    return Rows(from_, to, row_len, tuple(dims))


def _continues(inner: tuple[int, int, int], from_stride: int, to_stride: int) -> bool:
    count, inner_from, inner_to = inner
    return from_stride == count * inner_from and to_stride == count * inner_to
