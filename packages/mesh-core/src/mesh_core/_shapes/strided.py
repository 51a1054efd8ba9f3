"""Strided layouts without a mesh: `Slice` contains only numbers, `Shape` names the dimensions."""

from __future__ import annotations

from mesh_core._core import Region
from mesh_core._shapes.shape_errors import MeshIndexError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, TypeAlias, overload

    from mesh_core._shapes.shape import Extent

    # `slice` is a method name in the core's classes and a parameter name here.
    PythonSlice: TypeAlias = slice[Any, Any, Any]

__all__ = ["Shape", "Slice"]


class Slice:
    """A strided array of numbers: `offset + sum(c * stride)` at coordinates `c`."""

    __slots__ = ("_offset", "_region", "_sizes", "_strides")

    def __init__(self, *, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> None:
        """Create a slice with one size and one stride for each dimension.

        Raises:
            ShapeError: A number would occur at two positions, or a limit is exceeded.
        """
        labels = [str(dim) for dim in range(len(sizes))]
        self._region = Region.strided(labels, sizes, strides, offset)
        self._offset = offset
        self._sizes = tuple(sizes)
        self._strides = tuple(strides)

    @staticmethod
    def new_row_major(sizes: Sequence[int]) -> Slice:
        """Return a contiguous slice in which the last dimension varies fastest.

        Raises:
            ShapeError: A size is below 1.
        """
        strides = [1] * len(sizes)
        for dim in range(len(sizes) - 1, 0, -1):
            strides[dim - 1] = strides[dim] * sizes[dim]
        return Slice(offset=0, sizes=sizes, strides=strides)

    @staticmethod
    def from_list(ranks: Sequence[int]) -> list[Slice]:
        """Cover the ranks, in their order, with evenly spaced slices, each as long as possible."""
        runs: list[list[int]] = []
        for rank in ranks:
            run = runs[-1] if runs else []
            step = run[1] - run[0] if len(run) > 1 else None
            if run and rank != run[-1] and step in (None, rank - run[-1]):
                run.append(rank)
            else:
                runs.append([rank])
        return [
            Slice(offset=run[0], sizes=[len(run)], strides=[run[1] - run[0] if run[1:] else 1])
            for run in runs
        ]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._sizes)

    @property
    def offset(self) -> int:
        """The first number."""
        return self._offset

    @property
    def sizes(self) -> list[int]:
        """The size of each dimension."""
        return list(self._sizes)

    @property
    def strides(self) -> list[int]:
        """The distance between neighbours in each dimension."""
        return list(self._strides)

    def index(self, value: int) -> int:
        """Return the row-major index of a number.

        Raises:
            MeshIndexError: The number is not in the slice.
        """
        return _index_of(self._region, value)

    def coordinates(self, value: int) -> list[int]:
        """Return the coordinates of a number.

        Raises:
            MeshIndexError: The number is not in the slice.
        """
        return list(self._region.coordinates(self.index(value)))

    def nditem(self, coordinates: Sequence[int]) -> int:
        """Return the number at these coordinates.

        Raises:
            MeshIndexError: A coordinate is out of range, or their count is not the number of
                dimensions.
        """
        if len(coordinates) != len(self._sizes):
            raise MeshIndexError(
                f"{len(coordinates)} coordinates for {len(self._sizes)} dimensions: "
                "give one for each"
            )
        labels = self._region.labels
        return self._region.select(**dict(zip(labels, coordinates, strict=True))).offset

    def get(self, index: int) -> int:
        """Return the number at a row-major index.

        Raises:
            MeshIndexError: The index is out of range.
        """
        return self._region.rank_at(index)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: int) -> int: ...
        @overload
        def __getitem__(self, index: PythonSlice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | PythonSlice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self._region.rank_at(at) for at in range(len(self))[index])
        return self._region.rank_at(index)

    def __len__(self) -> int:
        return len(self._region)

    def __iter__(self) -> Iterator[int]:
        return iter(self._region)

    def __contains__(self, value: int) -> bool:
        return value in self._region

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slice) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"Slice(offset={self._offset}, sizes={self.sizes}, strides={self.strides})"

    def __reduce__(self) -> tuple[Any, ...]:
        return slice_of, self._fields()

    def _fields(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        return self._offset, self._sizes, self._strides


class Shape:
    """A region with the interface that users of `Slice` expect."""

    __slots__ = ("_region",)

    def __init__(self, labels: Sequence[str], slice: Slice) -> None:
        """Name the dimensions of a slice.

        Raises:
            ShapeError: The number of labels is not the number of dimensions, or a label occurs
                twice.
        """
        self._region = Region(labels, slice)

    @staticmethod
    def unity() -> Shape:
        """Return the shape of one member without dimensions."""
        return shape_of(Region.row_major((), ()))

    @property
    def region(self) -> Region:
        """The shape as a region."""
        return self._region

    @property
    def extent(self) -> Extent:
        """The dimensions."""
        return self._region.extent

    @property
    def labels(self) -> list[str]:
        """The names of the dimensions."""
        return list(self._region.labels)

    @property
    def ndslice(self) -> Slice:
        """The ranks as a `Slice`.

        Raises:
            ShapeError: The shape has no constant strides.
        """
        return self._region.slice()

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank in each dimension.

        Raises:
            MeshIndexError: The rank is not in the shape.
        """
        place = self._region.coordinates(_index_of(self._region, rank))
        return dict(zip(self._region.labels, place, strict=True))

    def at(self, label: str, index: int) -> Shape:
        """Select one index of a dimension, which is dropped.

        Raises:
            UnknownDim: The shape has no such dimension.
            MeshIndexError: The index is out of range.
        """
        return shape_of(self._region.select(**{label: index}))

    def select(self, label: str, slice: PythonSlice) -> Shape:
        """Select a part of a dimension.

        Raises:
            UnknownDim: The shape has no such dimension.
            ShapeError: The result is empty.
        """
        return shape_of(self._region.select(**{label: slice}))

    def index(self, /, **dims: int) -> Shape:
        """Select one index of each given dimension; these dimensions are dropped.

        Raises:
            UnknownDim: The shape has no such dimension.
            MeshIndexError: An index is out of range.
        """
        return shape_of(self._region.select(**dims))

    def ranks(self) -> list[int]:
        """Return all ranks."""
        return self._region.ranks()

    def __len__(self) -> int:
        return len(self._region)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self._region == other._region

    def __hash__(self) -> int:
        return hash(self._region)

    def __str__(self) -> str:
        return str(self._region)

    def __repr__(self) -> str:
        return f"Shape({self._region})"

    def __reduce__(self) -> tuple[Any, ...]:
        return shape_of, (self._region,)


def slice_of(offset: int, sizes: Sequence[int], strides: Sequence[int]) -> Slice:
    """Create a slice; called by the core and during unpickling."""
    return Slice(offset=offset, sizes=sizes, strides=strides)


def shape_of(region: Region) -> Shape:
    """Create the shape of a region; called by the core and during unpickling."""
    shape = Shape.__new__(Shape)
    shape._region = region
    return shape


def _index_of(region: Region, rank: int) -> int:
    index = region.index_of(rank)
    if index is None:
        raise MeshIndexError(f"{rank} is not in {region!r}: use one of its ranks")
    return index
