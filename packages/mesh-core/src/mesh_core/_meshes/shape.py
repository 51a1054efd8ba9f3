"""Named dimensions: extents, points, and the algebra that all meshes share.

```python
extent = Extent(["hosts", "gpus"], [2, 4])
point = Point(6, extent)
assert dict(point) == {"hosts": 1, "gpus": 2}
```

Everything that depends on strides is in `Region`, which is the core's; nothing here enumerates.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from mesh_core._core import Region
from mesh_core._meshes.shape_errors import MeshIndexError, SelectorError, ShapeError, UnknownDim
from mesh_core._meshes.strided import Shape, Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, Self, SupportsIndex, TypeAlias

    Selector: TypeAlias = SupportsIndex | slice[Any, Any, Any] | Iterable[SupportsIndex]
    Parts: TypeAlias = tuple[str, ...] | list[str] | int

__all__ = ["Extent", "MemberMesh", "MeshTrait", "Point", "Region", "Shape", "Slice"]

# The dimension of a flat slice of a mesh that has not exactly one.
_FLAT_LABEL = "rank"


class Extent(Mapping[str, int]):
    """The dimensions of a mesh: a mapping from labels to sizes, the outermost first."""

    __slots__ = ("_labels", "_nelements", "_sizes")

    def __init__(self, labels: Sequence[str], sizes: Sequence[int]) -> None:
        """Takes one size for each label.

        Raises:
            ShapeError: When the numbers differ, a label repeats or a size is below 1.
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
        """How many members a mesh of this extent has."""
        return self._nelements

    @property
    def region(self) -> Region:
        """The whole mesh of this extent, ranked row by row."""
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
    """One place in an extent: a mapping from labels to coordinates."""

    __slots__ = ("_extent", "_rank")

    def __init__(self, rank: int, extent: Extent) -> None:
        """Takes the row-major place in the extent.

        Raises:
            MeshIndexError: When the extent has no such place.
        """
        if not 0 <= rank < extent._nelements:
            raise MeshIndexError(f"rank {rank} is not in {extent}: use 0 to {extent.nelements - 1}")
        self._rank = rank
        self._extent = extent

    @property
    def rank(self) -> int:
        """The row-major place in the extent."""
        return self._rank

    @property
    def extent(self) -> Extent:
        """What the point is a place in."""
        return self._extent

    def size(self, label: str | None = None) -> int:
        """Gives the size of one dimension of the extent, or of the whole.

        Raises:
            UnknownDim: When there is no such dimension.
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
    """The algebra of everything that has named dimensions: hosts, procs, actors, values.

    A subclass keeps a `Region` and says how to make itself over another one. What the methods give
    is a reference to a part of the same mesh; nothing is copied, and nothing is enumerated.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # Which ranks of the mesh these are.
        _region: Region

    def _with_region(self, region: Region) -> Self:
        """Gives the same over another part of the mesh."""
        raise NotImplementedError(f"{type(self).__name__} must say what a part of it is")

    def slice(self, /, **dims: Selector) -> Self:
        """Keeps a part of some dimensions, as `mesh.slice(hosts=-1, gpus=slice(0, 4, 2))`.

        An int drops the dimension; a slice or a list of ints keeps it. Negative ints count from the
        end, slices go either way, and lists keep their order.

        Raises:
            UnknownDim: When there is no such dimension.
            MeshIndexError: When an int is out of range.
            SelectorError: When something else than an int, a slice or a list of ints is given.
            ShapeError: When nothing is left, or a list names an index twice.
        """
        return self._with_region(self._region.select(**dims))

    def split(self, /, **dims: Parts) -> Self:
        """Replaces dimensions by several each, as `mesh.split(gpus=("dp", "tp"), tp=2)`.

        One size of each split may be left out.

        Raises:
            UnknownDim: When there is no such dimension.
            SplitError: When the sizes do not multiply to that of the dimension.
            ShapeError: When a label is there twice.
        """
        return self._with_region(self._region.split(**dims))

    def flatten(self, name: str) -> Self:
        """Makes all dimensions one; works on any slice.

        Raises:
            ShapeError: When the name is empty or too long.
        """
        return self._with_region(self._region.flatten(name))

    def rename(self, /, **dims: str) -> Self:
        """Gives dimensions new names, as `mesh.rename(gpus="ranks")`.

        Raises:
            UnknownDim: When there is no such dimension.
            ShapeError: When a label would be there twice.
        """
        return self._with_region(self._region.rename(**dims))

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """Gives the size of one dimension, of several together, or of the whole mesh.

        Raises:
            UnknownDim: When there is no such dimension.
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

    def __len__(self) -> int:
        return len(self._region)


class MemberMesh(MeshTrait):
    """A mesh whose members are meshes of one: what it gives when iterated or indexed."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Self]:
        region = self._region
        for index in range(len(region)):
            yield self._with_region(region.member(index))

    def __getitem__(self, index: Selector | Point) -> Self:
        """Gives the member at a row-major index or point, or the members of a slice or a list.

        A slice keeps the label of a mesh with one dimension; others are flattened to `rank`.

        Raises:
            MeshIndexError: When there is no such member, or the point belongs to another extent.
            SelectorError: When the index is nothing of that kind.
            ShapeError: When a slice is empty, or a list names an index twice.
        """
        return self._with_region(region_at(self._region, index))


def region_at(region: Region, index: Selector | Point) -> Region:
    """Gives the part of a region at a flat index: without dimensions for one member, else with one.

    Raises:
        MeshIndexError: When there is no such member, or the point belongs to another extent.
        SelectorError: When the index is nothing of that kind.
        ShapeError: When a slice is empty, or a list names an index twice.
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
        raise ShapeError(f"a label of {labels} is there twice: rename one")
    for label, size in zip(labels, sizes, strict=True):
        if size < 1:
            raise ShapeError(
                f"dimension {label!r} has size {size}: give each dimension at least one member"
            )
