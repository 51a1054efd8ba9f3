"""From an array that lies in some buffers to the same array cut in another way."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mesh_core.spi import failed_future, future_of
from mesh_rdma._completions.settled_group import SettledGroup
from mesh_rdma._errors import RDMABoundsError, RDMAError
from mesh_rdma._operations.pull import Pull
from mesh_rdma._operations.remote_operation import begin_pulls
from mesh_rdma._reshard.box import Box, rows_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from mesh_core import Future
    from mesh_core.spi import Completion
    from mesh_rdma._buffers.buffer import RDMABuffer
    from mesh_rdma._reshard.layout import Layout

__all__ = ["Move", "Schedule", "join_schedules", "plan_reshard"]

_TIMEOUT_S = 60.0


class Move(NamedTuple):
    """Rows of bytes from one buffer to another.

    Attributes:
        src: Which source, by its place in the list.
        dst: Which destination.
        from_: The first byte in the source,
        to: and in the destination.
        row_len: How many bytes lie side by side in both.
        dims: Outermost first: how many times, and how far it is from one to the next in both.
    """

    src: int
    dst: int
    from_: int
    to: int
    row_len: int
    dims: tuple[tuple[int, int, int], ...]

    @property
    def nbytes(self) -> int:
        """How many bytes it moves."""
        total = self.row_len
        for count, _, _ in self.dims:
            total *= count
        return total


@dataclass(frozen=True)
class Schedule:
    """Who copies which bytes from where: made once by `plan_reshard`, run as often as you like.

    It knows no buffers, and may be pickled.

    Attributes:
        moves: All that is copied.
        src_lens: How many bytes each source must have,
        dst_lens: and each destination.
    """

    moves: tuple[Move, ...]
    src_lens: tuple[int, ...]
    dst_lens: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes are moved in all."""
        return sum(move.nbytes for move in self.moves)

    def bytes_per_source(self) -> list[int]:
        """Gives how many bytes are read of each source."""
        totals = [0] * len(self.src_lens)
        for move in self.moves:
            totals[move.src] += move.nbytes
        return totals

    def run(
        self,
        srcs: Sequence[RDMABuffer | None],
        dsts: Sequence[RDMABuffer | None],
        *,
        timeout: float | None = _TIMEOUT_S,
    ) -> Future[None]:
        """Copies all: the owners of the destinations do it, side by side, each for itself.

        Args:
            srcs: The buffers that have the array, in the order of the source's shards; None for one
                that has no bytes.
            dsts: Those that get it.
            timeout: Seconds until it is given up; None is no limit.

        Raises:
            RDMABoundsError: A buffer is missing or too short.
            RDMAReadOnlyError: A destination may not be written.

        The future raises `RDMAIncomplete` if some destinations could not be filled; the others are.
        """
        _check(srcs, self.src_lens, "source")
        _check(dsts, self.dst_lens, "destination")
        owners: dict[bytes, list[Move]] = defaultdict(list)
        for move in self.moves:
            dst = dsts[move.dst]
            assert dst is not None
            owners[dst._handle.process].append(move)
        parts: list[tuple[Completion[None], Sequence[int]]] = []
        try:
            for moves in owners.values():
                places = sorted({move.dst for move in moves})
                pulls = [_pull(move, srcs, dsts) for move in moves]
                parts += [(part, places) for part in begin_pulls(pulls, timeout)]
        except RDMAError as error:
            for part, _ in parts:
                part.cancel()
            return failed_future(error)
        return future_of(SettledGroup(parts, len(dsts)))


def plan_reshard(
    src: Layout,
    dst: Layout,
    *,
    src_machines: Sequence[Hashable] | None = None,
    dst_machines: Sequence[Hashable] | None = None,
) -> Schedule:
    """Finds out which bytes of which source each destination needs.

    Where several sources have the same, the one that gives least so far is taken; one on the same
    machine first, where machines are given.

    Args:
        src: How the array lies now.
        dst: How it is to lie.
        src_machines: The machine of each source, in any words.
        dst_machines: That of each destination.

    Raises:
        ValueError: They are not of the same array, or no source has what a destination needs.
    """
    if (src.shape, src.itemsize) != (dst.shape, dst.itemsize):
        raise ValueError(
            f"an array of {src.shape} of {src.itemsize} bytes is no array of {dst.shape} of "
            f"{dst.itemsize} bytes: give two layouts of one array"
        )
    holders: dict[Box, list[int]] = defaultdict(list)
    for place, box in enumerate(src.shards):
        holders[box].append(place)
    loads = [0] * len(src.shards)
    moves = []
    for place, box in enumerate(dst.shards):
        left = [box] if box.item_count else []

        def cost(source: int, place: int = place) -> tuple[bool, int, int]:
            is_far = (
                src_machines is not None
                and dst_machines is not None
                and src_machines[source] != dst_machines[place]
            )
            return is_far, loads[source], (source - place) % len(loads)

        for held, sources in holders.items():
            rest = []
            for part in left:
                met = part.meet(held)
                if met is None:
                    rest.append(part)
                    continue
                source = min(sources, key=cost)
                loads[source] += met.item_count
                moves.append(_move(src, dst, source, place, met))
                rest += part.without(met)
            left = rest
            if not left:
                break
        if left:
            raise ValueError(f"no source has {left[0]}, which destination {place} needs")
    return _schedule(moves, _lens(src), _lens(dst))


def join_schedules(schedules: Sequence[Schedule]) -> Schedule:
    """Makes one schedule of several for the same lists of buffers: many arrays in one step.

    Raises:
        ValueError: They are for lists of different lengths, or there are none.
    """
    counts = {(len(one.src_lens), len(one.dst_lens)) for one in schedules}
    if len(counts) != 1:
        raise ValueError("schedules for lists of buffers of different lengths, or none at all")
    moves = [move for one in schedules for move in one.moves]
    src_lens = map(max, zip(*(one.src_lens for one in schedules), strict=True))
    dst_lens = map(max, zip(*(one.dst_lens for one in schedules), strict=True))
    return _schedule(moves, tuple(src_lens), tuple(dst_lens))


def _move(src: Layout, dst: Layout, source: int, place: int, part: Box) -> Move:
    rows = rows_of(part, src.shards[source], dst.shards[place], src.itemsize)
    from_, to = rows.from_ + src.starts[source], rows.to + dst.starts[place]
    return Move(source, place, from_, to, rows.row_len, rows.dims)


def _lens(layout: Layout) -> tuple[int, ...]:
    lens = (layout.nbytes(place) for place in range(len(layout.shards)))
    return tuple(n and start + n for start, n in zip(layout.starts, lens, strict=True))


def _schedule(moves: list[Move], src_lens: tuple[int, ...], dst_lens: tuple[int, ...]) -> Schedule:
    """Joins runs that lie side by side in both buffers."""
    joined: list[Move] = []
    for move in sorted(moves, key=lambda one: (one.dst, one.src, one.from_, one.to)):
        last = joined[-1] if joined else None
        if last is not None and _follows(last, move):
            joined[-1] = last._replace(row_len=last.row_len + move.row_len)
        else:
            joined.append(move)
    return Schedule(tuple(joined), src_lens, dst_lens)


def _follows(last: Move, move: Move) -> bool:
    return (
        not last.dims
        and not move.dims
        and (last.dst, last.src) == (move.dst, move.src)
        and last.from_ + last.row_len == move.from_
        and last.to + last.row_len == move.to
    )


def _check(buffers: Sequence[RDMABuffer | None], lens: Sequence[int], what: str) -> None:
    if len(buffers) != len(lens):
        raise RDMABoundsError(f"{len(buffers)} {what}s, and the schedule is for {len(lens)}")
    for place, (buffer, length) in enumerate(zip(buffers, lens, strict=True)):
        size = 0 if buffer is None else buffer.size()
        if size < length:
            raise RDMABoundsError(
                f"{what} {place} has {size} bytes, and the schedule needs {length}"
            )
        if buffer is not None and length and what == "destination":
            buffer._check_writable()


def _pull(move: Move, srcs: Sequence[RDMABuffer | None], dsts: Sequence[RDMABuffer | None]) -> Pull:
    source, place = srcs[move.src], dsts[move.dst]
    assert source is not None
    assert place is not None
    from_, to = source._offset + move.from_, place._offset + move.to
    return Pull(source._handle, place._handle, from_, to, move.row_len, move.dims)
