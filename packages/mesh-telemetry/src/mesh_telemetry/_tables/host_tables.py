"""The rows of one host, decoded on demand from the folders of its processes."""

from __future__ import annotations

import tempfile
import time
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mesh_telemetry._disk.conversion import families_of, source_of
from mesh_telemetry._disk.stored_tables import StoredFile, StoredTables, TableRows, read_files
from mesh_telemetry._errors import QueryError
from mesh_telemetry._events.proc_folder import proc_folders
from mesh_telemetry._events.process_socket import FLUSH
from mesh_telemetry._events.segments import FAMILIES
from mesh_telemetry._heap.tables import HEAP_TABLES
from mesh_telemetry._heap.tracked_process import HEAP_FOLDER
from mesh_telemetry._replicas.replica import adopted_folders, is_copy
from mesh_telemetry._rows.live_tables import live_batches, request_state
from mesh_telemetry._rows.same_batches import are_same
from mesh_telemetry._rows.schemas import LIVE_TABLES, PERMANENT_TABLES, TABLES
from mesh_telemetry._rows.segment_rows import SegmentRows, TimedBatch
from mesh_telemetry._stacks.folder import STACK_FOLDER
from mesh_telemetry._stacks.pyspy_tables import PYSPY_TABLES
from mesh_telemetry._stacks.tables import StackTables

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

    from mesh_telemetry._events.proc_folder import CachedFolder, ProcFolder

__all__ = ["HostTables"]

_FLUSH_S = 0.5
# Number of attempts to read segments that are moved concurrently.
_TRIES_MAX = 5


class HostTables:
    """The rows of one host.

    Args:
        folder: The folder of the host.
        cache_bytes: Memory for decoded segments, in bytes.
        retention_s: The maximum age of rows in seconds; spilled rows may be older.
        spill: The folder with evicted rows of this host, if they are kept.
        own_proc: The reading process, which appears in no table.
        scratch: A folder in which links to files can be created for a query; the temporary
            directory if omitted.
        is_over: Whether the program has ended: live tables then have only recorded snapshots.

    Attributes:
        schemas: The existing tables.
        scratch: The folder in which links to files can be created.
    """

    schemas: Mapping[str, pa.Schema] = TABLES

    def __init__(
        self,
        folder: Path,
        *,
        cache_bytes: int = 0,
        retention_s: float = 3600.0,
        spill: Path | None = None,
        own_proc: int | None = None,
        scratch: Path | None = None,
        is_over: bool = False,
    ) -> None:
        self._folder = folder
        self._retention_s = retention_s
        self._spill = spill
        own_procs = frozenset(() if own_proc is None else (own_proc,))
        self._segment_rows = SegmentRows(cache_bytes, own_procs)
        self._known: dict[tuple[Path, str], CachedFolder] = {}
        self._distinct_cache: dict[str, tuple[list[pa.RecordBatch], list[pa.RecordBatch]]] = {}
        self._query_folders: list[ProcFolder] | None = None
        self._is_over = is_over
        self.scratch: Path = scratch or Path(tempfile.gettempdir())
        self._stored = None if spill is None else StoredTables(spill)
        stacks = StackTables(folder / STACK_FOLDER)
        heaps = StackTables(folder / HEAP_FOLDER, HEAP_TABLES)
        self._dumps = dict.fromkeys(PYSPY_TABLES, stacks) | dict.fromkeys(HEAP_TABLES, heaps)

    def refresh(self, timeout_s: float = _FLUSH_S) -> int:
        """Request that all processes write their events; return how many did so in time."""
        return _flush(self._folders(), FAMILIES, timeout_s)

    def for_query(self, tables: Iterable[str], timeout_s: float = _FLUSH_S) -> HostTables:
        """Return the tables for one query, refreshed and limited to the current processes.

        Args:
            tables: The tables that it reads. Processes are contacted only if they record data for
                them.
            timeout_s: The time to wait for processes, in seconds.
        """
        view = copy(self)
        view._query_folders = self._folders()
        families = {family for table in tables for family, _ in families_of(table)}
        if families:
            _flush(view._query_folders, families, timeout_s)
        return view

    def batches(
        self, table: str, since_us: int | None, until_us: int | None
    ) -> list[pa.RecordBatch]:
        """Return the rows of a table, including those on disk.

        Args:
            table: Its name.
            since_us: Omit older rows, in microseconds since the epoch.
            until_us: Omit newer rows: return the table as it was then.

        Raises:
            QueryError: The table does not exist, or it is live and has no history.
        """
        table_rows = self.table_rows(table, since_us, until_us)
        return [
            *read_files(table_rows.files, TABLES[table], since_us, until_us),
            *table_rows.batches,
        ]

    def table_rows(self, table: str, since_us: int | None, until_us: int | None) -> TableRows:
        """Return the rows of a table that are in memory, and the files that contain the rest.

        Rows in files may be outside of the bounds.

        Raises:
            QueryError: The table does not exist, or it is live and has no history.
        """
        if table not in TABLES:
            known = ", ".join(sorted(TABLES))
            raise QueryError(f"no table {table!r}: the tables are {known}")
        if table in LIVE_TABLES:
            return TableRows(self._live(table, until_us))
        # Dumps are not spilled.
        is_kept = table in PERMANENT_TABLES or self._spill is not None
        if not is_kept or table in self._dumps:
            oldest_us = int((time.time() - self._retention_s) * 1e6)
            since_us = oldest_us if since_us is None else max(since_us, oldest_us)
        if table in self._dumps:
            return TableRows(self._dumps[table].batches(table, since_us, until_us))
        for _ in range(_TRIES_MAX):
            found, files, has_moved = self._recorded(table, since_us, until_us)
            if not has_moved:
                break
        within = [_between(batch, since_us, until_us) for batch in found]
        within = [batch for batch in within if batch.num_rows]
        if table in ("actors", "meshes"):
            # The same actor or mesh may have been recorded more than once.
            from_files = read_files(files, TABLES[table], since_us, until_us)
            return TableRows(self._distinct(table, [*from_files, *within]))
        return TableRows(within, files)

    def request_state(self, request: str) -> list[tuple[ProcFolder, Any]]:
        """Send a request to all live processes; return the responses that arrive in time."""
        return request_state(self._folders(), request)

    @property
    def cached_bytes(self) -> int:
        """The memory in use for decoded segments, in bytes."""
        return self._segment_rows.byte_count

    def _folders(self) -> list[ProcFolder]:
        if self._query_folders is not None:
            return self._query_folders
        own = proc_folders(self._folder, self._spill, self._known)
        return own + adopted_folders(self._folder)

    def _distinct(self, table: str, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return one row of each id; an unchanged table returns the same batches."""
        before, made = self._distinct_cache.get(table, ([], []))
        if not are_same(before, batches):
            made = _one_row_per_id(batches, is_latest=table == "actors")
            self._distinct_cache[table] = batches, made
        return made

    def _live(self, table: str, until_us: int | None) -> list[pa.RecordBatch]:
        """Return a live table now, or its last snapshot before a time."""
        if until_us is None and not self._is_over:
            folders = self._folders()
            if table == "hosts":
                # The data of the kernel concerns this host only.
                folders = [one for one in folders if not is_copy(one)]
            return live_batches(table, folders)
        files = [] if self._stored is None else self._stored.files(table)
        if not files:
            raise QueryError(
                f"table {table!r} shows only the current state, and no snapshots were recorded:"
                " query it without as_of, or set snapshot_s in TelemetryConfig"
            )
        found = [one for one in files if until_us is None or one.first_us <= until_us]
        if not found:
            return []
        # The newest file has the newest rows, but merged files may overlap.
        last_us = max(one.last_us if until_us is None else one.first_us for one in found)
        wanted = [one for one in found if one.last_us >= last_us]
        batches = read_files(wanted, TABLES[table], None, until_us)
        moment = max(pc.max(one.column("timestamp_us")).as_py() for one in batches)
        timed = map(TimedBatch.of, batches)
        return [one for one in (_between(one, moment, moment) for one in timed) if one.num_rows]

    def _recorded(
        self, table: str, since_us: int | None, until_us: int | None
    ) -> tuple[list[TimedBatch], list[StoredFile], bool]:
        """Return rows of segments, the files with all other rows, and whether segments have moved.

        Segments are listed before files. A segment that is converted to a file in between is found
        as both, and the segment is then skipped.
        """
        listed = [
            (folder, segment, make, is_sealed)
            for folder in self._folders()
            for family, make in families_of(table)
            for segment, is_sealed in folder.segments(family)
            if until_us is None or segment.first_us <= until_us
        ]
        files = [] if self._stored is None else self._stored.files(table)
        covered = {source for stored in files for source in stored.sources}
        found: list[TimedBatch] = []
        has_moved = False
        for folder, segment, make, is_sealed in listed:
            if self._stored is not None and source_of(folder, segment) in covered:
                continue
            if is_sealed and since_us is not None:
                # If `last_us` is None, the segment has moved, which the read below detects.
                last_us = segment.last_us()
                if last_us is not None and last_us < since_us:
                    continue
            pieces = self._segment_rows.pieces(table, folder, segment, make, is_sealed)
            if pieces is not None:
                found += pieces
            else:
                has_moved = self._stored is not None
        return found, [one for one in files if _is_within(one, since_us, until_us)], has_moved


def _flush(folders: list[ProcFolder], families: Collection[str], timeout_s: float) -> int:
    """Request that processes write events of some families that are not yet in files.

    Returns:
        The number of live processes that have no unwritten events.
    """
    alive = [folder for folder in folders if folder.is_alive]
    incomplete = [folder for folder in alive if folder.has_more(families)]
    if not incomplete:
        return len(alive)
    return len(alive) - len(incomplete) + len(request_state(incomplete, FLUSH, timeout_s))


def _is_within(stored: StoredFile, since_us: int | None, until_us: int | None) -> bool:
    is_late = since_us is not None and stored.last_us < since_us
    return not is_late and not (until_us is not None and stored.first_us > until_us)


def _between(piece: TimedBatch, since_us: int | None, until_us: int | None) -> pa.RecordBatch:
    batch = piece.batch
    times = batch.column("timestamp_us")
    mask = None
    if since_us is not None and piece.first_us < since_us:
        mask = pc.greater_equal(times, since_us)
    if until_us is not None and piece.last_us > until_us:
        is_old = pc.less_equal(times, until_us)
        mask = is_old if mask is None else pc.and_(mask, is_old)
    return batch if mask is None else batch.filter(mask)


def _one_row_per_id(batches: list[pa.RecordBatch], *, is_latest: bool) -> list[pa.RecordBatch]:
    """Keep only the latest row of each id, or the first."""
    if not batches:
        return []
    table = pa.Table.from_batches(batches).combine_chunks()
    if pc.count_distinct(table.column("id")).as_py() == table.num_rows:
        whole: list[pa.RecordBatch] = table.to_batches()
        return whole
    order = np.argsort(table.column("timestamp_us").to_numpy(), kind="stable")
    if is_latest:
        order = order[::-1]
    _, first = np.unique(table.column("id").to_numpy()[order], return_index=True)
    kept: list[pa.RecordBatch] = table.take(pa.array(np.sort(order[first]))).to_batches()
    return kept
