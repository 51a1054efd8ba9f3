"""Named dimensions: extents, points, and the algebra that all meshes share.

```python
extent = Extent(["hosts", "gpus"], [2, 4])
point = Point(6, extent)
assert dict(point) == {"hosts": 1, "gpus": 2}
```

The core's `Region` implements everything that depends on strides. Nothing here enumerates members.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from mesh_core._core import Region
from mesh_core._shapes.rank_table import rank_table
from mesh_core._shapes.shape_errors import MeshIndexError, SelectorError, ShapeError, UnknownDim
from mesh_core._shapes.strided import Shape, Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, Never, Self, SupportsIndex, TypeAlias

    Selector: TypeAlias = SupportsIndex | slice[Any, Any, Any] | Iterable[SupportsIndex]
    Parts: TypeAlias = tuple[str, ...] | list[str] | int

__all__ = ["Extent", "MemberMesh", "MeshTrait", "Point", "Region", "Shape", "Slice"]

# The dimension of a flat slice of a mesh that does not have exactly one dimension.
_FLAT_LABEL = "rank"


class Extent(Mapping[str, int]):
    """The dimensions of a mesh: a mapping from labels to sizes, the outermost first."""

    __slots__ = ("_labels", "_nelements", "_sizes")

    def __init__(self, labels: Sequence[str], sizes: Sequence[int]) -> None:
        """Create an extent with one size for each label.

        Raises:
            ShapeError: The numbers differ, a label is repeated, or a size is below 1.
        """
        self._labels = labels = tuple(labels)
        self._sizes = sizes = tuple(sizes)
        self._nelements = prod(sizes)
        if len(labels) != len(sizes) or len(labels) > 1 or self._nelements < 1:
            _check_dims(labels, sizes)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the dimensions."""
        return self._labels

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self._sizes

    @property
    def nelements(self) -> int:
        """The number of members of a mesh with this extent."""
        return self._nelements

    @property
    def region(self) -> Region:
        """The whole mesh of this extent, with ranks in row-major order."""
        return Region.row_major(self._labels, self._sizes)

    def __getitem__(self, label: str) -> int:
        return self._sizes[_place(label, self._labels)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __contains__(self, label: object) -> bool:
        return label in self._labels

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Extent):
            return self._labels == other._labels and self._sizes == other._sizes
        return Mapping.__eq__(self, other)

    def __hash__(self) -> int:
        return hash((self._labels, self._sizes))

    def __str__(self) -> str:
        return f"{{{', '.join(f'{label}: {size}' for label, size in self.items())}}}"

    def __repr__(self) -> str:
        return f"Extent({self._labels!r}, {self._sizes!r})"

    def __reduce__(self) -> tuple[type[Extent], tuple[tuple[str, ...], tuple[int, ...]]]:
        return Extent, (self._labels, self._sizes)


class Point(Mapping[str, int]):
    """A position in an extent: a mapping from labels to coordinates."""

    __slots__ = ("_extent", "_rank")

    def __init__(self, rank: int, extent: Extent) -> None:
        """Create a point from its row-major index in the extent.

        Raises:
            MeshIndexError: The index is outside the extent.
        """
        if not 0 <= rank < extent._nelements:
            raise MeshIndexError(f"rank {rank} is not in {extent}: use 0 to {extent.nelements - 1}")
        self._rank = rank
        self._extent = extent

    @property
    def rank(self) -> int:
        """The row-major index in the extent."""
        return self._rank

    @property
    def extent(self) -> Extent:
        """The extent that contains the point."""
        return self._extent

    def size(self, label: str | None = None) -> int:
        """Return the size of one dimension of the extent, or of the whole extent.

        Raises:
            UnknownDim: The extent has no such dimension.
        """
        return self._extent._nelements if label is None else self._extent[label]

    def __getitem__(self, label: str) -> int:
        sizes = self._extent._sizes
        place = _place(label, self._extent._labels)
        return self._rank // prod(sizes[place + 1 :]) % sizes[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._extent._labels)

    def __len__(self) -> int:
        return len(self._extent._labels)

    def __contains__(self, label: object) -> bool:
        return label in self._extent._labels

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Point):
            return self._rank == other._rank and self._extent == other._extent
        return Mapping.__eq__(self, other)

    def __hash__(self) -> int:
        return hash((self._rank, self._extent))

    def __str__(self) -> str:
        sizes = self._extent._sizes
        pairs = zip(self.items(), sizes, strict=True)
        return f"{{{', '.join(f'{label!r}: {at}/{size}' for (label, at), size in pairs)}}}"

    def __repr__(self) -> str:
        return f"Point({self._rank}, {self._extent!r})"

    def __reduce__(self) -> tuple[type[Point], tuple[int, Extent]]:
        return Point, (self._rank, self._extent)


class MeshTrait:
    """Algebra of everything with named dimensions: hosts, processes, actors and values.

    A subclass holds a `Region` and can create an instance over another one. The methods return
    references to a part of the same mesh; they neither copy nor enumerate members.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # The ranks of the mesh that this instance covers.
        _region: Region

    def _with_region(self, region: Region) -> Self:
        """Return an instance over another part of the mesh."""
        raise NotImplementedError(f"{type(self).__name__} must define _with_region")

    def slice(self, /, *positions: Never, **dims: Selector) -> Self:
        """Select a part of some dimensions, as in `mesh.slice(hosts=-1, gpus=slice(0, 4, 2))`.

        An int drops the dimension; a slice or a list of ints keeps it. Negative ints count from the
        end, slices may have a negative step, and lists keep their order.

        Raises:
            UnknownDim: The mesh has no such dimension.
            MeshIndexError: An int is out of range.
            SelectorError: A selector is neither an int, a slice nor a list of ints, or is given
                without the name of its dimension.
            ShapeError: The result is empty, or a list contains an index twice.
        """
        if positions:
            raise _unnamed(positions, self._region.labels)
        return self._with_region(self._region.select(**dims))

    def split(self, /, **dims: Parts) -> Self:
        """Split each given dimension into several, as in `mesh.split(gpus=("dp", "tp"), tp=2)`.

        One size of each split may be omitted.

        Raises:
            UnknownDim: The mesh has no such dimension.
            SplitError: The product of the sizes is not the size of the dimension.
            ShapeError: A label occurs twice.
        """
        return self._with_region(self._region.split(**dims))

    def flatten(self, name: str) -> Self:
        """Merge all dimensions into one; works on any slice.

        Raises:
            ShapeError: The name is empty or too long.
        """
        return self._with_region(self._region.flatten(name))

    def rename(self, /, **dims: str) -> Self:
        """Rename dimensions, as in `mesh.rename(gpus="ranks")`.

        Raises:
            UnknownDim: The mesh has no such dimension.
            ShapeError: A label would occur twice.
        """
        return self._with_region(self._region.rename(**dims))

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """Return the size of one dimension, the product of several, or the size of the whole mesh.

        Raises:
            UnknownDim: The mesh has no such dimension.
        """
        region = self._region
        if dim is None:
            return len(region)
        if isinstance(dim, str):
            return region.size(dim)
        return prod([region.size(label) for label in dim])

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension."""
        region = self._region
        return dict(zip(region.labels, region.sizes, strict=True))

    @property
    def extent(self) -> Extent:
        """The dimensions."""
        return self._region.extent

    def to_table(self) -> str:
        """Format the ranks as a table: the last dimension as columns, the one before as rows."""
        return rank_table(self._region)

    def _repr_html_(self) -> str:
        """Return the ranks as a table, for notebooks."""
        # Only notebooks need it.
        from mesh_core._shapes.html_table import mesh_table  # noqa: PLC0415

        region = self._region
        return mesh_table(repr(self), region, lambda index: str(region.rank_at(index)))

    def __len__(self) -> int:
        return len(self._region)


class MemberMesh(MeshTrait):
    """A mesh whose members are meshes with one member, when it is iterated or indexed."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Self]:
        region = self._region
        for index in range(len(region)):
            yield self._with_region(region.member(index))

    def __getitem__(self, index: Selector | Point) -> Self:
        """Return the member at a row-major index or point, or the members of a slice or a list.

        The result of a slice keeps the label of a mesh with one dimension. Meshes with more
        dimensions are flattened to `rank`.

        Raises:
            MeshIndexError: The index is out of range, or the point belongs to another extent.
            SelectorError: The index has none of these types.
            ShapeError: A slice is empty, or a list contains an index twice.
        """
        return self._with_region(region_at(self._region, index))


def region_at(region: Region, index: Selector | Point) -> Region:
    """Return the part of a region at a flat index.

    A single member has no dimensions; any other part has one.

    Raises:
        MeshIndexError: The index is out of range, or the point belongs to another extent.
        SelectorError: The index has none of these types.
        ShapeError: A slice is empty, or a list contains an index twice.
    """
    if isinstance(index, Point):
        extent = region.extent
        if index.extent != extent:
            raise MeshIndexError(
                f"point {index} is in {index.extent}, not in {extent}: use a point of this mesh"
            )
        return region.member(index.rank)
    if type(index) is int:
        return region.member(index)
    if isinstance(index, (str, tuple)):
        raise SelectorError(
            f"cannot index a mesh with {index!r}: use an int, a slice, a list of ints or a point, "
            "or slice(dim=...) for one dimension"
        )
    labels = region.labels
    label = labels[0] if len(labels) == 1 else _FLAT_LABEL
    return region.flatten(label).select(**{label: index})


def _unnamed(positions: Sequence[object], labels: Sequence[str]) -> SelectorError:
    """Return the error for selectors without dimensions."""
    if not labels:
        return SelectorError("the mesh has no dimensions, so it has no slices: call it as it is")
    named = ", ".join(
        f"{label}={position!r}" for label, position in zip(labels, positions, strict=False)
    )
    return SelectorError(
        f"slice takes selectors with the names of dimensions: slice({named}); "
        "mesh[0] is the member at rank 0"
    )


def _place(label: str, labels: tuple[str, ...]) -> int:
    try:
        return labels.index(label)
    except ValueError:
        known = f"use one of {', '.join(labels)}" if labels else "there are no dimensions"
        raise UnknownDim(f"no dimension {label!r}: {known}") from None


def _check_dims(labels: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    if len(labels) != len(sizes):
        raise ShapeError(
            f"{len(labels)} labels for {len(sizes)} sizes: give one size for each label"
        )
    if len(set(labels)) != len(labels):
        raise ShapeError(f"a label occurs twice in {labels}: rename one")
    for label, size in zip(labels, sizes, strict=True):
        if size < 1:
            raise ShapeError(
                f"dimension {label!r} has size {size}: give each dimension at least one member"
            )
