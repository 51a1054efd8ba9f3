"""Values with the dimensions of the mesh that they came from."""

from __future__ import annotations

from collections.abc import Iterable

from mesh_core._shapes.shape import MeshTrait, Point, Region, region_at
from mesh_core._shapes.shape_errors import MeshIndexError, SelectorError, ShapeError, UnknownDim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Generic, Self, SupportsIndex, TypeAlias, TypeVar, overload

    from mesh_core._shapes.shape import Extent, Shape

    # `slice` is a method of each mesh.
    Part: TypeAlias = slice[Any, Any, Any] | Iterable[SupportsIndex]
    R = TypeVar("R")
    Raw = TypeVar("Raw")
else:
    R = None

    # Importing `typing` takes ten times as long as importing this module.
    class Generic:
        __slots__ = ()
        __class_getitem__ = classmethod(type(list[int]))


__all__ = ["ValueMesh"]


# The number of values that `repr` shows.
_SHOWN_MAX = 8


class ValueMesh(MeshTrait, Generic[R]):
    """One value for each member of a mesh, addressed by position.

    ```python
    losses = trainers.step.call(batch).get()
    worst = max(losses.values())
    first_host = losses.slice(hosts=0)
    for point, loss in losses.items():
        print(point["gpus"], loss)
    ```

    Points are relative to this mesh: after slicing, they are numbered from 0 again.
    """

    __slots__ = ("_cells", "_region")

    if TYPE_CHECKING:

        @overload
        def __init__(self, extent: Extent | Region | Shape, values: Iterable[R]) -> None: ...
        @overload
        def __init__(
            self,
            extent: Extent | Region | Shape,
            values: Iterable[Raw],
            decode: Callable[[Raw], R] | None,
        ) -> None: ...

    def __init__(
        self,
        extent: Extent | Region | Shape,
        values: Iterable[Any],
        decode: Callable[[Any], R] | None = None,
    ) -> None:
        """Create a mesh from values in row-major order.

        Args:
            extent: The dimensions.
            values: One value for each position, or the input of `decode`.
            decode: Called with the entry of a position when it is first read; returns the value.

        Raises:
            ShapeError: The number of values is not the number of positions.
        """
        region = extent if isinstance(extent, Region) else extent.region
        cells: _Cells[R] = _Cells(list(values), decode)
        if len(cells.values) != len(region):
            raise ShapeError(
                f"{len(cells.values)} values for the {len(region)} places of {region}: "
                "give one for each"
            )
        # Positions are numbered within this mesh, even if its members belong to a larger one.
        if not region.is_row_major_whole:
            region = Region.row_major(region.labels, region.sizes)
        self._region = region
        self._cells = cells

    @classmethod
    def from_indexed(
        cls, extent: Extent | Region | Shape, indexed: Iterable[tuple[SupportsIndex, R]]
    ) -> ValueMesh[R]:
        """Create a mesh from ranks and their values, in any order; the last value of a rank counts.

        Raises:
            ShapeError: A rank has no value.
            MeshIndexError: A rank is out of range.
        """
        region = extent if isinstance(extent, Region) else extent.region
        found: dict[int, R] = {}
        for rank, value in indexed:
            at = rank.__index__()
            if not 0 <= at < len(region):
                raise MeshIndexError(f"rank {at} is not in {region}: use 0 to {len(region) - 1}")
            found[at] = value
        missing = [rank for rank in range(len(region)) if rank not in found]
        if missing:
            shown = ", ".join(map(str, missing[:_SHOWN_MAX]))
            raise ShapeError(f"{len(missing)} ranks of {region} have no value: {shown}")
        return ValueMesh(region, (found[rank] for rank in range(len(region))))

    def _with_region(self, region: Region) -> Self:
        part = type(self).__new__(type(self))
        part._region = region
        part._cells = self._cells
        return part

    def item(self, /, **coordinates: SupportsIndex) -> R:
        """Return the value at one position, as in `losses.item(hosts=0, gpus=3)`.

        Raises:
            UnknownDim: A dimension is missing or unknown.
            MeshIndexError: A coordinate is out of range.
            SelectorError: A coordinate is not an int.
        """
        missing = [label for label in self._region.labels if label not in coordinates]
        if missing:
            raise UnknownDim(f"no coordinate for {', '.join(missing)}: give one for each dimension")
        place = self._region.select(**coordinates)
        if place.labels:
            raise SelectorError(
                f"several values are selected along {', '.join(place.labels)}: use an int for each "
                "dimension, or use slice(...)"
            )
        return self._cells.get(place.offset)

    def get(self, rank: SupportsIndex) -> R:
        """Return the value at a row-major index.

        Raises:
            MeshIndexError: The index is out of range.
        """
        return self._cells.get(self._region.rank_at(rank))

    def values(self) -> list[R]:
        """Return the values in rank order."""
        return [self._cells.get(rank) for rank in self._region]

    def items(self) -> Iterator[tuple[Point, R]]:
        """Iterate over the positions and their values."""
        extent = self.extent
        return ((Point(rank, extent), value) for rank, value in enumerate(self.values()))

    def __iter__(self) -> Iterator[tuple[Point, R]]:
        return self.items()

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: SupportsIndex | Point) -> R: ...
        @overload
        def __getitem__(self, index: Part) -> ValueMesh[R]: ...

    def __getitem__(self, index: SupportsIndex | Point | Part) -> R | ValueMesh[R]:
        """Return the value at a row-major index or point, or the values of a slice or a list.

        Raises:
            MeshIndexError: The index is out of range, or the point belongs to another extent.
            SelectorError: The index has none of these types.
            ShapeError: A slice is empty, or a list contains an index twice.
        """
        region = region_at(self._region, index)
        return self._with_region(region) if region.labels else self._cells.get(region.offset)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueMesh):
            return NotImplemented
        return self.extent == other.extent and list(self.values()) == list(other.values())

    def __hash__(self) -> int:
        """Hash the values.

        Raises:
            TypeError: A value is not hashable.
        """
        return hash((self.extent, tuple(self.values())))

    def __repr__(self) -> str:
        shown = [repr(self.get(rank)) for rank in range(min(len(self), _SHOWN_MAX))]
        if len(self) > _SHOWN_MAX:
            shown.append(f"... {len(self) - _SHOWN_MAX} more")
        return f"{type(self).__name__}({self._region}, [{', '.join(shown)}])"

    def _repr_html_(self) -> str:
        """Return the values as a table, for notebooks."""
        # Only notebooks need it.
        from mesh_core._shapes.html_table import mesh_table  # noqa: PLC0415

        title = f"{type(self).__name__} {self.extent}"
        return mesh_table(title, self._region, lambda index: repr(self.get(index)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.extent, list(self.values()))


class _Cells(Generic[R]):
    """The entries of a mesh, shared by its slices so that each is decoded only once."""

    __slots__ = ("_decode", "_is_raw", "values")

    def __init__(self, values: list[Any], decode: Callable[[Any], R] | None) -> None:
        self.values = values
        self._decode = decode
        self._is_raw = bytearray(b"\x01") * len(values) if decode is not None else bytearray()

    def get(self, rank: int) -> R:
        if self._decode is not None and self._is_raw[rank]:
            value = self._decode(self.values[rank])
            # Another thread may have been faster; all threads must see the same value.
            if self._is_raw[rank]:
                self.values[rank] = value
                self._is_raw[rank] = 0
        found: R = self.values[rank]
        return found
