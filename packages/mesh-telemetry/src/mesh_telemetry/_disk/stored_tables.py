"""Rows on disk: Parquet files, in a folder for each table of a host.

The name of a file contains the times of its first and last row, so that most queries need not open
it. Its metadata lists the segments or files that it was built from. If a process was killed after
it wrote a file and before it removed the sources, a reader therefore recognizes rows that exist
twice.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from mesh_telemetry._events.segment_export import INCOMPLETE_SUFFIX, make_folder
from mesh_telemetry._rows.time_column import TIME_COLUMN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["TABLES_FOLDER", "StoredFile", "StoredTables", "TableRows", "read_files"]

TABLES_FOLDER = "tables"
_NAME = re.compile(r"(-?\d+)-(-?\d+)-[0-9a-f]{16}\.parquet")
_SOURCES = b"mesh_telemetry.sources"
_ROW_GROUP_ROWS = 1 << 16
# The files of a live table are merged when there are this many.
_SMALL_MAX = 64


class StoredFile(NamedTuple):
    """A Parquet file, as described by its name."""

    path: str
    first_us: int
    """The time of its first row, in microseconds since the epoch."""
    last_us: int
    sources: frozenset[str]
    """The segments or files that it was built from."""

    @property
    def name(self) -> str:
        """The name under which other files list it as a source."""
        return os.path.basename(self.path)


class TableRows(NamedTuple):
    """The rows of a table in memory, and the files with the rest."""

    batches: list[pa.RecordBatch]
    files: Sequence[StoredFile] = ()


class StoredTables:
    """The Parquet files of a host.

    Args:
        folder: The folder of the host, which contains them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / TABLES_FOLDER
        self._known: dict[str, StoredFile] = {}
        self._large: set[str] = set()

    def files(self, table: str) -> list[StoredFile]:
        """Return the files of a table, oldest first, without files that were merged into others."""
        found = []
        with suppress(OSError):
            for name in os.listdir(self._folder / table):
                stored = self._file(str(self._folder / table / name))
                if stored is not None:
                    found.append(stored)
        replaced = {source for stored in found for source in stored.sources}
        return sorted(stored for stored in found if stored.name not in replaced)

    def write(self, table: str, rows: pa.Table, sources: Iterable[str]) -> StoredFile:
        """Write rows ordered by time, atomically even if the process is killed.

        Raises:
            OSError: They cannot be written.
        """
        rows = rows.sort_by(TIME_COLUMN)
        times = rows.column(TIME_COLUMN)
        first_us, last_us = times[0].as_py(), times[-1].as_py()
        folder = self._folder / table
        make_folder(folder)
        path = folder / f"{first_us}-{last_us}-{os.urandom(8).hex()}.parquet"
        named = tuple(sources)
        incomplete = path.with_name(path.name + INCOMPLETE_SUFFIX)
        rows = rows.replace_schema_metadata({_SOURCES: json.dumps(named)})
        try:
            pq.write_table(rows, incomplete, compression="zstd", row_group_size=_ROW_GROUP_ROWS)
            with open(incomplete, "rb") as file:
                os.fsync(file.fileno())
            incomplete.rename(path)
        except BaseException:
            incomplete.unlink(missing_ok=True)
            raise
        return StoredFile(str(path), first_us, last_us, frozenset(named))

    def merge(self, table: str, schema: pa.Schema) -> None:
        """Merge small files into one; if the process is killed, readers still see each row once.

        Raises:
            OSError: The file cannot be written.
        """
        small = [one for one in self.files(table) if one.path not in self._large]
        if len(small) < _SMALL_MAX:
            return
        rows = pa.Table.from_batches(read_files(small, schema, None, None), schema)
        whole = self.write(table, rows, [one.name for one in small])
        if rows.num_rows >= _ROW_GROUP_ROWS:
            self._large.add(whole.path)
        for one in small:
            self.remove(one)

    def remove(self, stored: StoredFile) -> None:
        """Remove a file if it still exists."""
        self._known.pop(stored.path, None)
        with suppress(OSError):
            os.unlink(stored.path)

    def remove_incomplete(self) -> None:
        """Remove incomplete files of killed processes; no other process may be writing."""
        for path in self._folder.glob(f"*/*{INCOMPLETE_SUFFIX}"):
            path.unlink(missing_ok=True)

    def tables(self) -> list[str]:
        """Return the names of the tables that have files."""
        with suppress(OSError):
            return sorted(os.listdir(self._folder))
        return []

    def _file(self, path: str) -> StoredFile | None:
        known = self._known.get(path)
        if known is not None:
            return known
        named = _NAME.fullmatch(os.path.basename(path))
        if named is None:
            return None
        try:
            metadata = pq.read_metadata(path).metadata or {}
        except (OSError, pa.ArrowException):
            # The file was removed concurrently, or is damaged.
            return None
        sources = frozenset(json.loads(metadata.get(_SOURCES, b"[]")))
        found = StoredFile(path, int(named[1]), int(named[2]), sources)
        self._known[path] = found
        return found


def read_files(
    files: Sequence[StoredFile], schema: pa.Schema, since_us: int | None, until_us: int | None
) -> list[pa.RecordBatch]:
    """Return the rows of some files with the columns of a schema that may be newer than they are.

    Raises:
        FileNotFoundError: One of them has been removed.
    """
    bounds = []
    if since_us is not None:
        bounds.append((TIME_COLUMN, ">=", since_us))
    if until_us is not None:
        bounds.append((TIME_COLUMN, "<=", until_us))
    found: list[pa.RecordBatch] = []
    for stored in files:
        with pq.ParquetFile(stored.path) as file:
            have = set(file.schema_arrow.names)
        rows = pq.read_table(stored.path, filters=bounds or None, partitioning=None)
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in have
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        found += pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches()
    return found
