"""Schedules that copy an array from one distribution over buffers to another."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mesh_core.spi import CompletionFuture
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
    """Rows of bytes to copy from one buffer to another.

    Attributes:
        src: The index of the source.
        dst: The index of the destination.
        from_: The offset of the first row in the source, in bytes.
        to: The offset of the first row in the destination, in bytes.
        row_len: The number of bytes that are contiguous in both.
        dims: For each dimension of rows, outermost first: the count, and the strides in bytes in
            the source and in the destination.
    """

    src: int
    dst: int
    from_: int
    to: int
    row_len: int
    dims: tuple[tuple[int, int, int], ...]

    @property
    def nbytes(self) -> int:
        """The number of bytes that are copied."""
        total = self.row_len
        for count, _, _ in self.dims:
            total *= count
        return total


@dataclass(frozen=True)
class Schedule:
    """The copies of a reshard, computed once by `plan_reshard` and run any number of times.

    A schedule does not refer to buffers and can be pickled.

    Attributes:
        moves: All copies.
        src_lens: The required size of each source, in bytes.
        dst_lens: The required size of each destination, in bytes.
    """

    moves: tuple[Move, ...]
    src_lens: tuple[int, ...]
    dst_lens: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The total number of bytes that are copied."""
        return sum(move.nbytes for move in self.moves)

    def bytes_per_source(self) -> list[int]:
        """Return the number of bytes that are read from each source."""
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
        """Execute all copies; the owners of the destinations perform them concurrently.

        The future raises `RDMAIncomplete` if some destinations could not be filled; all others
        were.

        Args:
            srcs: The source buffers, in the order of the shards of the source layout; None for a
                shard without bytes.
            dsts: The destination buffers, in the order of the shards of the destination layout.
            timeout: The limit in seconds; None means no limit.

        Raises:
            RDMABoundsError: A buffer is missing or too short.
            RDMAReadOnlyError: A destination is read-only.
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
            return CompletionFuture.failed(error)
        return CompletionFuture(SettledGroup(parts, len(dsts)))


def plan_reshard(
    src: Layout,
    dst: Layout,
    *,
    src_machines: Sequence[Hashable] | None = None,
    dst_machines: Sequence[Hashable] | None = None,
) -> Schedule:
    """Compute the bytes that each destination needs from each source.

    If several sources have the same part, the source with the fewest elements so far provides it.
    If machines are given, sources on the machine of the destination are preferred.

    Args:
        src: The current layout.
        dst: The new layout.
        src_machines: The machine of each source, as any hashable id.
        dst_machines: The machine of each destination.

    Raises:
        ValueError: The layouts differ in shape or element size, or no source has a part that a
            destination needs.
    """
    if (src.shape, src.itemsize) != (dst.shape, dst.itemsize):
        raise ValueError(
            f"the source layout has shape {src.shape} and itemsize {src.itemsize}, but the"
            f" destination layout has shape {dst.shape} and itemsize {dst.itemsize}: pass two"
            " layouts of one array"
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
                common = part.intersection(held)
                if common is None:
                    rest.append(part)
                    continue
                source = min(sources, key=cost)
                loads[source] += common.item_count
                moves.append(_move(src, dst, source, place, common))
                rest += part.without(common)
            left = rest
            if not left:
                break
        if left:
            raise ValueError(f"no source contains {left[0]}, which destination {place} needs")
    return _schedule(moves, _lens(src), _lens(dst))


def join_schedules(schedules: Sequence[Schedule]) -> Schedule:
    """Combine several schedules for the same lists of buffers, to copy many arrays in one step.

    Raises:
        ValueError: The schedules are for lists of different lengths, or `schedules` is empty.
    """
    counts = {(len(one.src_lens), len(one.dst_lens)) for one in schedules}
    if len(counts) != 1:
        raise ValueError(
            "the schedules are for lists of buffers of different lengths, or there are none"
        )
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
    """Merge copies that are adjacent in both buffers."""
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
        raise RDMABoundsError(f"got {len(buffers)} {what}s, but the schedule is for {len(lens)}")
    for place, (buffer, length) in enumerate(zip(buffers, lens, strict=True)):
        size = 0 if buffer is None else buffer.size()
        if size < length:
            raise RDMABoundsError(
                f"{what} {place} has {size} bytes, but the schedule needs {length}"
            )
        if buffer is not None and length and what == "destination":
            buffer._check_writable()


def _pull(move: Move, srcs: Sequence[RDMABuffer | None], dsts: Sequence[RDMABuffer | None]) -> Pull:
    source, place = srcs[move.src], dsts[move.dst]
    assert source is not None
    assert place is not None
    from_, to = source._offset + move.from_, place._offset + move.to
    return Pull(source._handle, place._handle, from_, to, move.row_len, move.dims)
