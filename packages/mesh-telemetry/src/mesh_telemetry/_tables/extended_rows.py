"""The rows of a host, including the tables that packages add."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from mesh_telemetry._disk.stored_tables import TableRows
from mesh_telemetry._errors import QueryError
from mesh_telemetry._events.process_socket import ROWS
from mesh_telemetry._rows.columns import constant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Protocol

    from mesh_telemetry._events.proc_folder import ProcFolder
    from mesh_telemetry._rows.added_tables import AddedTable

    class RecordedRows(Protocol):
        """The provider of recorded rows: `HostTables`, or the same for a program that has ended."""

        @property
        def schemas(self) -> Mapping[str, pa.Schema]: ...

        def batches(
            self, table: str, since_us: int | None, until_us: int | None
        ) -> list[pa.RecordBatch]: ...

        def table_rows(
            self, table: str, since_us: int | None, until_us: int | None
        ) -> TableRows: ...

        @property
        def scratch(self) -> Path: ...

        def request_state(self, request: str) -> list[tuple[ProcFolder, Any]]: ...


__all__ = ["ExtendedRows"]


class ExtendedRows:
    """The rows of a host, including tables that packages add.

    Args:
        recorded: The built-in tables.
        added: The other tables.
    """

    def __init__(self, recorded: RecordedRows, added: Sequence[AddedTable]) -> None:
        self._recorded = recorded
        self._added = {one.name: one for one in added}
        self.schemas: Mapping[str, pa.Schema] = {
            **recorded.schemas,
            **{one.name: one.schema for one in added},
        }

    def batches(
        self, table: str, since_us: int | None, until_us: int | None
    ) -> list[pa.RecordBatch]:
        """Return the rows of a table, as `HostTables.batches` does.

        Raises:
            QueryError: The table does not exist, or it is live and has no history.
        """
        added = self._added.get(table)
        if added is None:
            return self._recorded.batches(table, since_us, until_us)
        return self._rows(added, since_us, until_us)

    def table_rows(self, table: str, since_us: int | None, until_us: int | None) -> TableRows:
        """Return the rows of a table, as `HostTables.table_rows` does.

        Raises:
            QueryError: The table does not exist, or it is live and has no history.
        """
        added = self._added.get(table)
        if added is None:
            return self._recorded.table_rows(table, since_us, until_us)
        return TableRows(self._rows(added, since_us, until_us))

    @property
    def scratch(self) -> Path:
        """A folder in which links to files can be created."""
        return self._recorded.scratch

    def _rows(
        self, added: AddedTable, since_us: int | None, until_us: int | None
    ) -> list[pa.RecordBatch]:
        if not added.is_live:
            batches = self._recorded.batches("rows", since_us, until_us)
            return [
                converted
                for batch in batches
                if (converted := _recorded_rows(added, batch)) is not None
            ]
        if until_us is not None:
            raise QueryError(
                f"table {added.name!r} shows only the current state: query it without as_of"
            )
        now_us = time.time_ns() // 1000
        return [
            _batch(
                added.schema,
                rows,
                {
                    "timestamp_us": now_us,
                    "host": folder.identity.host_name,
                    "proc": folder.identity.proc,
                },
            )
            for folder, rows in self._recorded.request_state(f"{ROWS} {added.name}")
            if rows
        ]


def _recorded_rows(added: AddedTable, batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """Build the rows of a table from recorded rows."""
    own = batch.filter(pc.equal(batch.column("table_name"), added.name))
    if not own.num_rows:
        return None
    rows = [json.loads(text) for text in own.column("row_json").to_pylist()]
    given = {name: own.column(name) for name in ("timestamp_us", "actor_id", "host", "proc")}
    return _batch(added.schema, rows, given)


def _batch(
    schema: pa.Schema, rows: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name not in given:
            arrays.append(_converted([row.get(field.name) for row in rows], field.type))
        elif isinstance(given[field.name], pa.Array):
            arrays.append(given[field.name])
        else:
            arrays.append(constant(given[field.name], field.type, len(rows)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _converted(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Build a column; values of another type become null, so that one bad row affects no other."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        return pa.array([_converted_value(value, kind) for value in values], kind)


def _converted_value(value: Any, kind: pa.DataType) -> Any:
    if value is None or (pa.types.is_string(kind) and not isinstance(value, str)):
        return None if value is None else str(value)
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        return None
    return value
