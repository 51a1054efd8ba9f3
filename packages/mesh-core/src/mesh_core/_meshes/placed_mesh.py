"""Common parts of process meshes and actor meshes, whose members each have a process."""

from __future__ import annotations

from mesh_core._meshes.mesh_place import epoch_of, place_in, ranks_on
from mesh_core._shapes.shape import MemberMesh, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from mesh_core._calls.future import Future
    from mesh_core._core import Region
    from mesh_core._meshes.proc_table import ProcTable

__all__ = ["ContextMesh", "PlacedMesh"]


class ContextMesh(MemberMesh):
    """A mesh that the end of a `with` or `async with` statement stops, and waits for."""

    def _end_context(self) -> Future[None]:
        """Start to stop the mesh."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ended = self._end_context()
        if error is None:
            ended.get()
        else:
            _note_failure(error, ended)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ended = self._end_context()
        if error is None:
            await ended
        else:
            await ended._settled()
            _note_failure(error, ended)


class PlacedMesh(MemberMesh):
    """A region of a table of processes.

    Attributes:
        _table: The processes.
        _region: The members: a selection of the processes, with their order and dimensions.
        _whole: The region as it was spawned, of which `_region` may be a slice.
        _uid: The number of the mesh in its job, shared by all its slices.
    """

    _table: ProcTable
    _region: Region
    _whole: Region
    _uid: int

    @property
    def _is_slice(self) -> bool:
        return self._region != self._whole

    @property
    def host_epoch(self) -> int:
        """A number that increases whenever the machine of one of the members is replaced."""
        return epoch_of(self._proc_of(index) >> 32 for index in range(len(self)))

    def _place(self, index: int) -> tuple[int, dict[str, int]]:
        """Return rank and coordinates of a member in the mesh as it was spawned."""
        return place_in(self._region, self._whole, index)

    def _proc_of(self, index: int) -> int:
        return self._table.proc(self._region.rank_at(index))

    def _ranks_on(self, proc: int) -> list[int]:
        return ranks_on(self._table, self._region, proc)

    def _point(self, index: int) -> Point:
        return Point(index, self.extent)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, type(self))
            and self._uid == other._uid
            and self._region == other._region
        )

    def __hash__(self) -> int:
        return hash((self._uid, self._region))


def _note_failure(error: BaseException, ended: Future[None]) -> None:
    """Add the failure of a stop as a note to the exception that caused the stop."""
    failure = ended.exception()
    if failure is not None:
        error.add_note(f"and its processes did not stop cleanly: {failure}")
