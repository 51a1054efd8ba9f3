"""Decoding of segments into rows, incrementally for segments that are still written."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from mesh_telemetry._events.segments import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_telemetry._events.proc_folder import ProcFolder
    from mesh_telemetry._events.segments import Segment

    Key = tuple[str, str, int, int, int]
    Make = Callable[..., pa.RecordBatch | None]

__all__ = ["SegmentRows", "TimedBatch"]

# Incremental pieces are merged when there are more than this.
_PIECES_MAX = 8
# Approximate overhead of a cached segment in addition to its rows.
_ENTRY_BYTES = 1024


class TimedBatch(NamedTuple):
    """A batch with the times of its first and last row, in microseconds since the epoch."""

    batch: pa.RecordBatch
    first_us: int
    last_us: int

    @staticmethod
    def of(batch: pa.RecordBatch) -> TimedBatch:
        """Determine the time range of a batch."""
        bounds = pc.min_max(batch.column("timestamp_us")).as_py()
        return TimedBatch(batch, bounds["min"] or 0, bounds["max"] or 0)


class _DecodedSegment(NamedTuple):
    pieces: tuple[TimedBatch, ...]
    length: int
    """The length of the segment that was decoded, in bytes."""
    is_whole: bool
    """Whether the segment was complete."""

    @property
    def byte_count(self) -> int:
        size: int = sum(piece.batch.nbytes for piece in self.pieces)
        return size + _ENTRY_BYTES


class SegmentRows:
    """Decodes segments into rows, and caches the most recently used ones.

    Args:
        bytes_max: Memory for the cache, in bytes.
        own_procs: Processes of telemetry itself, which appear in no table.
    """

    def __init__(self, bytes_max: int, own_procs: frozenset[int]) -> None:
        self._bytes_max = bytes_max
        self._own_procs = own_procs
        self._made: OrderedDict[Key, _DecodedSegment] = OrderedDict()
        self._turn = threading.Lock()
        #: The memory in use, in bytes.
        self.byte_count = 0

    def pieces(
        self, table: str, folder: ProcFolder, segment: Segment, make: Make, is_sealed: bool
    ) -> tuple[TimedBatch, ...] | None:
        """Return the rows of a table in a segment; None if the segment no longer exists.

        Args:
            table: Its name.
            folder: The folder of the process.
            segment: The segment.
            make: Decodes the segment between two lengths.
            is_sealed: Whether the segment is complete.
        """
        own_procs = folder.own_procs | self._own_procs
        # The path is not part of the key, because a segment is moved when it is spilled.
        name = folder.path.name + segment.family
        key = (table, name, segment.number, len(folder.own_ports), len(own_procs))
        with self._turn:
            made = self._made.get(key)
            if made is not None:
                self._made.move_to_end(key)
        if made is not None and made.is_whole:
            return made.pieces
        length = segment.length()
        if length is None:
            return None
        if made is not None and made.length == length and not is_sealed:
            return made.pieces
        if made is None or made.length > length:
            made = _DecodedSegment((), 0, False)
        if made.length < length:
            pieces, start = made.pieces, made.length
            if segment.family != MESSAGES:
                # Row ids depend on the position in the segment, so lines are decoded from the
                # start.
                pieces, start = (), 0
            batch = make(table, segment.path, folder, own_procs, (start, length))
            if batch is not None:
                pieces = _joined((*pieces, TimedBatch.of(batch)))
            made = made._replace(pieces=pieces, length=length)
        self._keep(key, made._replace(is_whole=is_sealed))
        return made.pieces

    def _keep(self, key: Key, made: _DecodedSegment) -> None:
        size = made.byte_count
        with self._turn:
            before = self._made.pop(key, None)
            self.byte_count -= before.byte_count if before is not None else 0
            if size > self._bytes_max:
                return
            self._made[key] = made
            self.byte_count += size
            while self.byte_count > self._bytes_max:
                _, oldest = self._made.popitem(last=False)
                self.byte_count -= oldest.byte_count


def _joined(pieces: tuple[TimedBatch, ...]) -> tuple[TimedBatch, ...]:
    if len(pieces) <= _PIECES_MAX:
        return pieces
    whole = pa.Table.from_batches([piece.batch for piece in pieces]).combine_chunks()
    return tuple(TimedBatch.of(batch) for batch in whole.to_batches())
