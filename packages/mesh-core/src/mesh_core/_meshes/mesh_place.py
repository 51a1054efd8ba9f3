"""The position of a mesh in the mesh as it was spawned, and its owner."""

from __future__ import annotations

from typing import Any

from mesh_core._calls.task_future import EndFuture
from mesh_core._runtime.runtime import runtime
from mesh_core._runtime.serving import serving
from mesh_core._shapes.shape import Extent, Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mesh_core._core import Region
    from mesh_core._meshes.proc_table import ProcTable

__all__ = [
    "AGENT_WINDOW",
    "ENDED",
    "check_owned",
    "epoch_of",
    "index_in",
    "owner_here",
    "place_in",
    "ranks_on",
]

# Agents are called rarely and reply immediately, so the window never blocks a sender.
AGENT_WINDOW = 1 << 31
# Shared by all meshes that have ended, which may be many in one program.
ENDED: EndFuture = EndFuture([], None)


def owner_here() -> tuple[int, int]:
    """Return the process and port of the caller: an actor, or the program."""
    current = serving()
    return (runtime().me, 0 if current is None else current.cell.port)


def epoch_of(hosts: Iterable[int]) -> int:
    """Return a number that increases whenever the machine of one of the hosts is replaced."""
    engine = runtime().engine
    return sum(engine.host_epoch(host) for host in set(hosts))


def ranks_on(table: ProcTable, region: Region, proc: int) -> list[int]:
    """Return the ranks of a region that are in a process: one or none."""
    rank = table.rank_of(proc)
    index = None if rank is None else region.index_of(rank)
    return [] if index is None else [index]


def place_in(region: Region, whole: Region, index: int) -> tuple[int, dict[str, int]]:
    """Return rank and coordinates, in the mesh as it was spawned, of a rank of a slice."""
    rank = whole.index_of(region.rank_at(index))
    assert rank is not None
    return rank, dict(Point(rank, Extent(whole.labels, whole.sizes)))


def index_in(mesh: Any, rank: int | Point) -> int:
    """Return a rank that may be negative or a point as a non-negative number.

    Raises:
        IndexError: The rank does not exist.
    """
    index = rank.rank if isinstance(rank, Point) else rank
    if not -len(mesh) <= index < len(mesh):
        raise IndexError(f"rank {index} is not one of the {len(mesh)} ranks of {mesh!r}")
    return index % len(mesh)


def check_owned(mesh: Any, is_slice: bool, owner: tuple[int, int], what: str = "stop") -> None:
    """Raise ValueError unless the mesh is whole and the caller has spawned it."""
    if is_slice:
        raise ValueError(f"{mesh!r} is a slice: {what} the whole mesh that was spawned")
    current = serving()
    is_mine = current is None or current.cell.port == owner[1]
    if owner[0] != runtime().me or not is_mine:
        raise ValueError(f"cannot {what} {mesh!r}: only the actor that owns it can do that")
