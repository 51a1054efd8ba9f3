"""The rows of the dumps in the folder of a host.

A file contains the Arrow stream of each table in sequence. It is memory-mapped: its columns take no
memory in addition to the file, and are created once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa

from mesh_telemetry._rows.schemas import TABLES
from mesh_telemetry._stacks.folder import StackFile, stack_files
from mesh_telemetry._stacks.pyspy_tables import PYSPY_TABLES, dump_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from mesh_telemetry._stacks.folder import StackFolder
    from mesh_telemetry._stacks.pyspy_tables import DumpOrigin

__all__ = ["StackTables", "store_dump", "store_rows"]

# Upper bound for the size of a stream without its batch.
_AROUND_BATCH = 8192


def store_dump(folder: StackFolder, dump_json: str | Mapping[str, Any], origin: DumpOrigin) -> None:
    """Add a dump to the folder of a host.

    Raises:
        TelemetryError: The text is not a dump.
        StorageError: The space is insufficient.
    """
    store_rows(folder, origin.timestamp_us, dump_rows(dump_json, origin))


def store_rows(folder: StackFolder, timestamp_us: int, rows: Mapping[str, pa.RecordBatch]) -> None:
    """Add a file with the rows of some tables, in this order, to the folder of a host.

    Args:
        folder: The folder.
        timestamp_us: The time of the rows, in microseconds since the epoch.
        rows: The rows by table.

    Raises:
        StorageError: The space is insufficient.
    """
    size = sum(pa.ipc.get_record_batch_size(batch) + _AROUND_BATCH for batch in rows.values())

    def write(path: Path) -> None:
        with pa.OSFile(str(path), "wb") as sink:
            for table, batch in rows.items():
                with pa.ipc.new_stream(sink, TABLES[table]) as writer:
                    writer.write_batch(batch)

    folder.add(timestamp_us, size, write)


class StackTables:
    """Reads the dumps of a host.

    Args:
        folder: The folder that contains them.
        tables: The tables in each file, in their order.
    """

    def __init__(self, folder: Path, tables: Sequence[str] = PYSPY_TABLES) -> None:
        self._folder = folder
        self._tables = tables
        self._opened: dict[str, dict[str, pa.RecordBatch]] = {}
        self._lock = threading.Lock()

    def batches(
        self, table: str, since_us: int | None, until_us: int | None
    ) -> list[pa.RecordBatch]:
        """Return the rows of a table between two times, a batch for each process of a dump."""
        files = stack_files(self._folder)
        with self._lock:
            for gone in self._opened.keys() - {file.path for file in files}:
                del self._opened[gone]
            wanted = [file for file in files if _is_between(file, since_us, until_us)]
            rows = [self._rows(file) for file in wanted]
        return [batches[table] for batches in rows if batches and batches[table].num_rows]

    def _rows(self, file: StackFile) -> dict[str, pa.RecordBatch]:
        """Return the rows of a file; none if it was removed concurrently."""
        if file.path not in self._opened:
            try:
                self._opened[file.path] = _mapped(file.path, self._tables)
            except FileNotFoundError:
                return {}
        return self._opened[file.path]


def _mapped(path: str, tables: Sequence[str]) -> dict[str, pa.RecordBatch]:
    # The mapping exists as long as one of its columns; it needs no descriptor.
    with pa.memory_map(path) as source:
        found = {}
        for table in tables:
            (found[table],) = pa.ipc.open_stream(source)
        return found


def _is_between(file: StackFile, since_us: int | None, until_us: int | None) -> bool:
    is_new = since_us is None or file.timestamp_us >= since_us
    return is_new and (until_us is None or file.timestamp_us <= until_us)
