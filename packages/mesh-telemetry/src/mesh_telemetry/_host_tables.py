"""The rows of one host: made of what its processes have left in their folders, when asked for."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mesh_telemetry._door import FLUSH, ask_all
from mesh_telemetry._errors import QueryError
from mesh_telemetry._line_tables import LINE_TABLES, line_batch
from mesh_telemetry._live_tables import live_batches
from mesh_telemetry._message_tables import MESSAGE_TABLES, message_batch
from mesh_telemetry._proc_folder import proc_folders
from mesh_telemetry._schemas import LIVE_TABLES, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mesh_telemetry._proc_folder import ProcFolder
    from mesh_telemetry._segments import Segment

    Key = tuple[str, str, int, int]

__all__ = ["HostTables"]

_FLUSH_S = 0.5


class HostTables:
    """Rows of one host.

    Args:
        folder: That of the host.
        cache_bytes: How much memory what was made of segments may take.
        retention_s: How old rows may be, in seconds; those that were spilled may be older.
        spill: Where segments of this host are for which there is no more room, if they are kept.
        own_proc: The process that reads, which is no part of any table.

    Attributes:
        schemas: The tables there are.
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
    ) -> None:
        self._folder = folder
        self._cache_bytes_max = cache_bytes
        self._retention_s = retention_s
        self._spill = spill
        self._own_procs = frozenset(() if own_proc is None else (own_proc,))
        self._cache: OrderedDict[Key, pa.RecordBatch | None] = OrderedDict()
        self._cache_bytes = 0
        self._turn = threading.Lock()

    def refresh(self, timeout_s: float = _FLUSH_S) -> int:
        """Has all processes write what has happened until now; says how many did in time."""
        living = [one.path for one in proc_folders(self._folder, self._spill) if one.is_alive]
        return len(ask_all(living, FLUSH, timeout_s))

    def batches(
        self, table: str, since_us: int | None, until_us: int | None
    ) -> list[pa.RecordBatch]:
        """Gives the rows of a table.

        Args:
            table: Its name.
            since_us: Leave out what is older, in microseconds since the epoch.
            until_us: Leave out what is younger: the table as it was then.

        Raises:
            QueryError: There is no such table, or it is live and has no past.
        """
        if table not in TABLES:
            known = ", ".join(sorted(TABLES))
            raise QueryError(f"there is no table {table!r}: the tables are {known}")
        folders = proc_folders(self._folder, self._spill)
        if table in LIVE_TABLES:
            if until_us is not None:
                raise QueryError(f"table {table!r} shows what is now: ask for it without as_of")
            return live_batches(table, folders)
        if self._spill is None:
            oldest_us = int((time.time() - self._retention_s) * 1e6)
            since_us = oldest_us if since_us is None else max(since_us, oldest_us)
        found = []
        for folder in folders:
            for batch in self._recorded(table, folder, since_us, until_us):
                within = _between(batch, since_us, until_us)
                if within.num_rows:
                    found.append(within)
        return _latest(found) if table == "actors" else found

    @property
    def cached_bytes(self) -> int:
        """How much memory is in use for what was made of segments."""
        return self._cache_bytes

    def _recorded(
        self, table: str, folder: ProcFolder, since_us: int | None, until_us: int | None
    ) -> list[pa.RecordBatch]:
        found = []
        for family, make in _families(table):
            for segment, is_sealed in folder.segments(family):
                if until_us is not None and segment.first_us > until_us:
                    break
                if is_sealed and since_us is not None and _last_us(segment) < since_us:
                    continue
                batch = self._batch(table, folder, segment, make, is_sealed)
                if batch is not None:
                    found.append(batch)
        return found

    def _batch(
        self,
        table: str,
        folder: ProcFolder,
        segment: Segment,
        make: Callable[..., pa.RecordBatch | None],
        is_sealed: bool,
    ) -> pa.RecordBatch | None:
        """Makes rows of a segment; of one that nothing more comes into, once."""
        own_procs = folder.own_procs | self._own_procs
        # A path says nothing: a segment is moved when it is spilled.
        key = (table, folder.path.name + segment.family, segment.number, len(folder.own_ports))
        with self._turn:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        batch = make(table, segment.path, folder, own_procs)
        if is_sealed and os.path.exists(segment.path):
            self._keep(key, batch)
        return batch

    def _keep(self, key: Key, batch: pa.RecordBatch | None) -> None:
        size = _size(batch)
        if size > self._cache_bytes_max:
            return
        with self._turn:
            if key in self._cache:
                return
            self._cache[key] = batch
            self._cache_bytes += size
            while self._cache_bytes > self._cache_bytes_max:
                _, oldest = self._cache.popitem(last=False)
                self._cache_bytes -= _size(oldest)


def _families(table: str) -> list[tuple[str, Callable[..., pa.RecordBatch | None]]]:
    found: list[tuple[str, Callable[..., pa.RecordBatch | None]]] = []
    if table in LINE_TABLES:
        found.append((LINE_TABLES[table][0], line_batch))
    if table in MESSAGE_TABLES:
        found.append(("messages", message_batch))
    return found


def _size(batch: pa.RecordBatch | None) -> int:
    return 256 if batch is None else batch.nbytes + 1024


def _last_us(segment: Segment) -> int:
    """When a segment was last written to: nothing in it is younger."""
    try:
        return os.stat(segment.path).st_mtime_ns // 1000
    except OSError:
        return 0


def _between(batch: pa.RecordBatch, since_us: int | None, until_us: int | None) -> pa.RecordBatch:
    times = batch.column("timestamp_us")
    mask = None
    if since_us is not None and (pc.min(times).as_py() or 0) < since_us:
        mask = pc.greater_equal(times, since_us)
    if until_us is not None and (pc.max(times).as_py() or 0) > until_us:
        is_old = pc.less_equal(times, until_us)
        mask = is_old if mask is None else pc.and_(mask, is_old)
    return batch if mask is None else batch.filter(mask)


def _latest(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Leaves the latest row of each id."""
    if not batches:
        return []
    table = pa.Table.from_batches(batches).combine_chunks()
    order = np.argsort(table.column("timestamp_us").to_numpy(), kind="stable")[::-1]
    _, first = np.unique(table.column("id").to_numpy()[order], return_index=True)
    kept: list[pa.RecordBatch] = table.take(pa.array(np.sort(order[first]))).to_batches()
    return kept
