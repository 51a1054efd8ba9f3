"""The rows of one host: made of what its processes have left in their folders, when asked for."""

from __future__ import annotations

import os
import time
from copy import copy
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
from mesh_telemetry._same_rows import SameRows
from mesh_telemetry._schemas import LIVE_TABLES, TABLES
from mesh_telemetry._segment_rows import SegmentRows, TimedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from mesh_telemetry._proc_folder import Place, ProcFolder
    from mesh_telemetry._segments import Segment

__all__ = ["HostTables"]

_FLUSH_S = 0.5
_ANSWER_S = 2.0


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
        same_rows: What was answered of them.
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
        self._retention_s = retention_s
        self._spill = spill
        own_procs = frozenset(() if own_proc is None else (own_proc,))
        self._made = SegmentRows(cache_bytes, own_procs)
        self._places: dict[str, Place] = {}
        self._listed: list[ProcFolder] | None = None
        self.same_rows: SameRows = SameRows()

    def refresh(self, timeout_s: float = _FLUSH_S) -> int:
        """Has all processes write what has happened until now; says how many did in time."""
        return _flush(self._folders(), timeout_s)

    def refreshed(self, timeout_s: float = _FLUSH_S) -> HostTables:
        """Gives the same tables for one question: refreshed, and of the processes there are now."""
        view = copy(self)
        view._listed = self._folders()
        _flush(view._listed, timeout_s)
        return view

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
        folders = self._folders()
        if table in LIVE_TABLES:
            if until_us is not None:
                raise QueryError(f"table {table!r} shows what is now: ask for it without as_of")
            return live_batches(table, folders)
        if self._spill is None:
            oldest_us = int((time.time() - self._retention_s) * 1e6)
            since_us = oldest_us if since_us is None else max(since_us, oldest_us)
        found = []
        for folder in folders:
            for piece in self._recorded(table, folder, since_us, until_us):
                within = _between(piece, since_us, until_us)
                if within.num_rows:
                    found.append(within)
        return _latest(found) if table == "actors" else found

    def said(self, word: str, timeout_s: float = _ANSWER_S) -> list[tuple[ProcFolder, Any]]:
        """Asks all processes that live the same; gives what those say that answer in time."""
        folders = self._folders()
        living = {folder.path: folder for folder in folders if folder.is_alive}
        answers = ask_all(list(living), word, timeout_s)
        return [(living[path], answer) for path, answer in answers.items()]

    @property
    def cached_bytes(self) -> int:
        """How much memory is in use for what was made of segments."""
        return self._made.byte_count

    def _folders(self) -> list[ProcFolder]:
        if self._listed is not None:
            return self._listed
        return proc_folders(self._folder, self._spill, self._places)

    def _recorded(
        self, table: str, folder: ProcFolder, since_us: int | None, until_us: int | None
    ) -> list[TimedBatch]:
        found: list[TimedBatch] = []
        for family, make in _families(table):
            for segment, is_sealed in folder.segments(family):
                if until_us is not None and segment.first_us > until_us:
                    break
                if is_sealed and since_us is not None and _last_us(segment) < since_us:
                    continue
                found += self._made.pieces(table, folder, segment, make, is_sealed) or ()
        return found


def _flush(folders: list[ProcFolder], timeout_s: float) -> int:
    living = [one.path for one in folders if one.is_alive]
    return len(ask_all(living, FLUSH, timeout_s))


def _families(table: str) -> list[tuple[str, Callable[..., pa.RecordBatch | None]]]:
    found: list[tuple[str, Callable[..., pa.RecordBatch | None]]] = []
    if table in LINE_TABLES:
        found.append((LINE_TABLES[table][0], line_batch))
    if table in MESSAGE_TABLES:
        found.append(("messages", message_batch))
    return found


def _last_us(segment: Segment) -> int:
    """When a segment was last written to: nothing in it is younger."""
    try:
        return os.stat(segment.path).st_mtime_ns // 1000
    except OSError:
        return 0


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


def _latest(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Leaves the latest row of each id."""
    if not batches:
        return []
    table = pa.Table.from_batches(batches).combine_chunks()
    if pc.count_distinct(table.column("id")).as_py() == table.num_rows:
        return batches
    order = np.argsort(table.column("timestamp_us").to_numpy(), kind="stable")[::-1]
    _, first = np.unique(table.column("id").to_numpy()[order], return_index=True)
    kept: list[pa.RecordBatch] = table.take(pa.array(np.sort(order[first]))).to_batches()
    return kept
