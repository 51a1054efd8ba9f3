"""Boxes of indices of an array: where they meet, what is left, and how they lie in memory."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

__all__ = ["Box", "Rows", "rows_of"]


class Box(NamedTuple):
    """A part of an array: in each dimension the first index, and how many there are.

    Attributes:
        offsets: The first indices.
        sizes: How many from there on.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def item_count(self) -> int:
        """How many elements it has."""
        return prod(self.sizes)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part, as what numpy and torch take between brackets."""
        pairs = zip(self.offsets, self.sizes, strict=True)
        return tuple(slice(offset, offset + size) for offset, size in pairs)

    def meet(self, other: Box) -> Box | None:
        """Gives what both have; None if that is nothing."""
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
        """Gives what is left when a part of it is taken out, as boxes that do not meet."""
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
    """How a box lies in two buffers.

    Attributes:
        from_: The first byte in the one,
        to: and in the other.
        row_len: How many bytes lie side by side in both.
        dims: Outermost first: how often that is so, and how far it is in both.
    """

    from_: int
    to: int
    row_len: int
    dims: tuple[tuple[int, int, int], ...]


def rows_of(part: Box, source: Box, place: Box, itemsize: int) -> Rows:
    """Says how a part of two boxes lies in both, each in memory by itself, row-major."""
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
