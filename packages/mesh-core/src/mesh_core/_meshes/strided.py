"""Strided layouts without a mesh: `Slice` has numbers only, `Shape` names the dimensions."""

from __future__ import annotations

from mesh_core._core import Region
from mesh_core._meshes.shape_errors import MeshIndexError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, TypeAlias, overload

    from mesh_core._meshes.shape import Extent

    # `slice` is a method's name in the core's classes, and a parameter's here.
    PythonSlice: TypeAlias = slice[Any, Any, Any]

__all__ = ["Shape", "Slice"]


class Slice:
    """Numbers laid out in dimensions: at coordinates `c` stands `offset + sum(c * stride)`."""

    __slots__ = ("_offset", "_region", "_sizes", "_strides")

    def __init__(self, *, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> None:
        """Takes one size and one stride for each dimension.

        Raises:
            ShapeError: When a number would stand at two places, or a limit is broken.
        """
        labels = [str(dim) for dim in range(len(sizes))]
        self._region = Region.strided(labels, sizes, strides, offset)
        self._offset = offset
        self._sizes = tuple(sizes)
        self._strides = tuple(strides)

    @staticmethod
    def new_row_major(sizes: Sequence[int]) -> Slice:
        """Makes a slice without gaps, the last dimension fastest.

        Raises:
            ShapeError: When a size is below 1.
        """
        strides = [1] * len(sizes)
        for dim in range(len(sizes) - 1, 0, -1):
            strides[dim - 1] = strides[dim] * sizes[dim]
        return Slice(offset=0, sizes=sizes, strides=strides)

    @staticmethod
    def from_list(ranks: Sequence[int]) -> list[Slice]:
        """Covers the ranks, in their order, with evenly spaced slices, each as long as possible."""
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
        """How many dimensions there are."""
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
        """How far apart neighbours are in each dimension."""
        return list(self._strides)

    def index(self, value: int) -> int:
        """Gives the row-major index at which this number stands.

        Raises:
            MeshIndexError: When it is not in the slice.
        """
        return _index_of(self._region, value)

    def coordinates(self, value: int) -> list[int]:
        """Gives the coordinates at which this number stands.

        Raises:
            MeshIndexError: When it is not in the slice.
        """
        return list(self._region.coordinates(self.index(value)))

    def nditem(self, coordinates: Sequence[int]) -> int:
        """Gives the number at these coordinates.

        Raises:
            MeshIndexError: When they are out of range, or not as many as there are dimensions.
        """
        if len(coordinates) != len(self._sizes):
            raise MeshIndexError(
                f"{len(coordinates)} coordinates for {len(self._sizes)} dimensions: "
                "give one for each"
            )
        labels = self._region.labels
        return self._region.select(**dict(zip(labels, coordinates, strict=True))).offset

    def get(self, index: int) -> int:
        """Gives the number at a row-major index.

        Raises:
            MeshIndexError: When the index is out of range.
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
    """A region under the name that users of `Slice` know it by."""

    __slots__ = ("_region",)

    def __init__(self, labels: Sequence[str], slice: Slice) -> None:
        """Names the dimensions of a slice.

        Raises:
            ShapeError: When there is not one label for each dimension, or one is there twice.
        """
        self._region = Region(labels, slice)

    @staticmethod
    def unity() -> Shape:
        """Makes the shape of one member without dimensions."""
        return shape_of(Region.row_major((), ()))

    @property
    def region(self) -> Region:
        """The same as a region."""
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
        """The numbers.

        Raises:
            ShapeError: When the shape has no constant strides.
        """
        return self._region.slice()

    def coordinates(self, rank: int) -> dict[str, int]:
        """Gives the place of a rank in each dimension.

        Raises:
            MeshIndexError: When it is not in the shape.
        """
        place = self._region.coordinates(_index_of(self._region, rank))
        return dict(zip(self._region.labels, place, strict=True))

    def at(self, label: str, index: int) -> Shape:
        """Keeps one index of a dimension, which is dropped.

        Raises:
            UnknownDim: When there is no such dimension.
            MeshIndexError: When the index is out of range.
        """
        return shape_of(self._region.select(**{label: index}))

    def select(self, label: str, slice: PythonSlice) -> Shape:
        """Keeps a part of a dimension.

        Raises:
            UnknownDim: When there is no such dimension.
            ShapeError: When nothing is left.
        """
        return shape_of(self._region.select(**{label: slice}))

    def index(self, /, **dims: int) -> Shape:
        """Keeps one index of each dimension named; those are dropped.

        Raises:
            UnknownDim: When there is no such dimension.
            MeshIndexError: When an index is out of range.
        """
        return shape_of(self._region.select(**dims))

    def ranks(self) -> list[int]:
        """Lists all ranks."""
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
    """Makes a slice; what the core and a pickle call."""
    return Slice(offset=offset, sizes=sizes, strides=strides)


def shape_of(region: Region) -> Shape:
    """Makes the shape of a region; what the core and a pickle call."""
    shape = Shape.__new__(Shape)
    shape._region = region
    return shape


def _index_of(region: Region, rank: int) -> int:
    index = region.index_of(rank)
    if index is None:
        raise MeshIndexError(f"{rank} is not in {region!r}: use one of its ranks")
    return index
