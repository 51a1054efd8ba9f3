"""Converts segments that were evicted from memory to Parquet."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from mesh_telemetry._events.proc_folder import ProcFolder, proc_folders
from mesh_telemetry._events.segments import FAMILIES, Segment, segments_of
from mesh_telemetry._rows.line_tables import LINE_TABLES, line_batch
from mesh_telemetry._rows.message_tables import MESSAGE_TABLES, message_batch
from mesh_telemetry._rows.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_telemetry._disk.stored_tables import StoredTables

    Make = Callable[..., pa.RecordBatch | None]

__all__ = ["PendingSegment", "convert", "families_of", "pending_segments", "source_of"]

_BYTES_AT_ONCE = 8 << 20
_SOURCES: dict[str, list[tuple[str, Callable[..., pa.RecordBatch | None]]]] = defaultdict(list)
for _table, _lines in LINE_TABLES.items():
    _SOURCES[_table].append((_lines[0], line_batch))
for _table in MESSAGE_TABLES:
    _SOURCES[_table].append(("messages", message_batch))


class PendingSegment(NamedTuple):
    """A segment that was moved to the spill folder and is not yet converted."""

    folder: ProcFolder
    segment: Segment
    length: int
    moved_s: float


def families_of(table: str) -> list[tuple[str, Make]]:
    """Return the families of events that a table is decoded from, each with its decoder."""
    return _SOURCES.get(table, [])


def source_of(folder: ProcFolder, segment: Segment) -> str:
    """Return the name of a segment, which does not depend on its location."""
    return f"{folder.path.name}/{segment.family}.{segment.number}"


def pending_segments(live: Path, spill: Path) -> list[PendingSegment]:
    """Return the segments of a host that wait for conversion, oldest first."""
    found = []
    for folder in proc_folders(live, spill):
        if folder.spilled is None:
            continue
        for family in FAMILIES:
            for segment in segments_of(folder.spilled, family):
                with suppress(OSError):
                    stat = os.stat(segment.path)
                    found.append(PendingSegment(folder, segment, stat.st_size, stat.st_mtime))
    return sorted(found, key=lambda one: one.segment.first_us)


def convert(
    waiting: list[PendingSegment],
    stored: StoredTables,
    own_procs: frozenset[int],
    deadline: float,
) -> list[PendingSegment]:
    """Convert segments to Parquet and then delete them, in groups so that memory is bounded.

    If the process is killed at any point, each segment either still exists, or all of its rows are
    in files that list it as a source.

    Args:
        waiting: The segments.
        stored: The destination of the files.
        own_procs: Processes of telemetry itself, which appear in no table.
        deadline: When to stop starting further groups, on `time.monotonic()`.

    Returns:
        The remaining segments.

    Raises:
        OSError: A file cannot be written.
    """
    left = list(waiting)
    while left and time.monotonic() < deadline:
        some = [left.pop(0)]
        length = some[0].length
        while left and length + left[0].length <= _BYTES_AT_ONCE:
            length += left[0].length
            some.append(left.pop(0))
        for table in TABLES:
            _convert_table(table, some, stored, own_procs)
        for one in some:
            with suppress(OSError):
                os.unlink(one.segment.path)
    return left


def _convert_table(
    table: str, some: list[PendingSegment], stored: StoredTables, own_procs: frozenset[int]
) -> None:
    """Write the rows of one table in some segments, unless they are already written."""
    makes = dict(families_of(table))
    wanted = [one for one in some if one.segment.family in makes]
    if not wanted:
        return
    written = {source for file in stored.files(table) for source in file.sources}
    batches, sources = [], []
    for one in wanted:
        source = source_of(one.folder, one.segment)
        if source in written:
            continue
        folder = one.folder
        make = makes[one.segment.family]
        batch = make(table, one.segment.path, folder, folder.own_procs | own_procs)
        if batch is not None:
            batches.append(batch)
            sources.append(source)
    if batches:
        stored.write(table, pa.Table.from_batches(batches, TABLES[table]), sources)
