"""Execution of one statement over the rows of a host."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, runtime_checkable

import datafusion
import pyarrow as pa

from mesh_telemetry._disk.stored_tables import TableRows
from mesh_telemetry._errors import QueryError, TelemetryError
from mesh_telemetry._plan.plan_tree import scanned_tables
from mesh_telemetry._plan.quoting import quoted
from mesh_telemetry._query.deadline import Cancellation, Cancelled, DeadlineExceeded, within
from mesh_telemetry._query.fragment import QUERY_FAULT, TOO_MUCH, Fragment
from mesh_telemetry._query.session import empty_batch, new_session, open_frame, readable
from mesh_telemetry._query.session_cache import SessionCache
from mesh_telemetry._query.time_bounds import since_us_of
from mesh_telemetry._rows.plain_types import cast_batch, plain_schema
from mesh_telemetry._rows.time_column import TIME_COLUMN

__all__ = ["Rows", "RowsWithFiles", "run_fragment", "run_until"]

_COMPRESSED_BYTES_MIN = 64 * 1024
_PARALLEL_ROWS_MIN = 500_000
_PARTITIONS_MAX = 4
_FEW_ROWS_MAX = 1 << 17
# Operators that return at most as many rows as the product of the sizes of all their inputs.
_BOUNDED = re.compile(
    r" *(?:Projection|Filter|Aggregate|Sort|Limit|Distinct|SubqueryAlias|WindowAggr|TableScan"
    r"|EmptyRelation|Union|(?:\w+ )?Join)\b"
)
_MULTIPLYING = re.compile(r"\b(?:ROLLUP|CUBE|GROUPING SETS)\b")


class Rows(Protocol):
    """The rows of a host by table."""

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The columns of each table."""

    def batches(
        self, table: str, since_us: int | None, until_us: int | None
    ) -> list[pa.RecordBatch]:
        """Return the rows of a table up to a time; all rows if None.

        Rows before `since_us` are not needed, but may be included.
        """


@runtime_checkable
class RowsWithFiles(Protocol):
    """The rows of a host, some of them in Parquet files."""

    @property
    def scratch(self) -> Path:
        """A folder in which links to files can be created."""

    def table_rows(self, table: str, since_us: int | None, until_us: int | None) -> TableRows:
        """Return the rows that are in memory, and the files that contain the rest."""


def run_fragment(fragment: Fragment, rows: Rows, cancellation: Cancellation | None = None) -> bytes:
    """Run a fragment over the rows of this host.

    Args:
        fragment: The statement and its limits.
        rows: The tables.
        cancellation: Cancels the work.

    Returns:
        An Arrow IPC stream with plain types.

    Raises:
        QueryError: The query is at fault, for example because it divides by zero or exceeds its
            limits for rows or memory.
        TelemetryError: The host cannot run it: it does not have the table, it is too slow, or the
            work was cancelled.

    Example:
        >>> import pyarrow as pa
        >>> class Two:
        ...     schemas = {"t": pa.schema([("x", pa.int64())])}
        ...     def batches(self, table, since_us, until_us):
        ...         return [pa.record_batch({"x": [1, 2]})]
        >>> fragment = Fragment("SELECT sum(x) AS s FROM t", ("t",), None, 10, 1 << 26, 5.0)
        >>> pa.ipc.open_stream(run_fragment(fragment, Two())).read_all().to_pylist()
        [{'s': 3}]
    """
    deadline = time.monotonic() + fragment.deadline_s
    try:
        return within(lambda: run_until(fragment, rows, deadline), deadline, cancellation)
    except Cancelled:
        raise TelemetryError("the query was cancelled") from None
    except DeadlineExceeded:
        raise TelemetryError(
            f"the query was not finished after {fragment.deadline_s:.3g} s: increase the timeout,"
            " or filter more"
        ) from None


def run_until(
    fragment: Fragment, rows: Rows, deadline: float, sessions: SessionCache | None = None
) -> bytes:
    """Run a fragment in the calling thread; a single batch may take longer than the deadline.

    Args:
        fragment: The statement and its limits.
        rows: The tables.
        deadline: When to stop, on `time.monotonic()`.
        sessions: Sessions to reuse, if further queries follow.

    Raises:
        QueryError: The query is at fault.
        TelemetryError: The host cannot run it.
        DeadlineExceeded: The deadline has passed.
    """
    tables = _tables(fragment, rows)
    row_count = sum(
        batch.num_rows for table_rows in tables.values() for batch in table_rows.batches
    )
    if row_count >= _PARALLEL_ROWS_MIN or any(table_rows.files for table_rows in tables.values()):
        return _run_in_partitions(fragment, rows, tables, deadline)
    filled = {
        table: table_rows.batches or [empty_batch(rows.schemas[table])]
        for table, table_rows in tables.items()
    }
    with (sessions or SessionCache()).filled(fragment.memory_max_bytes, filled) as session:
        frame = session.open(fragment.sql, fragment.values)
        batches = _all_batches if _gives_few(frame, filled) else _batches
        return _collect(frame, batches, fragment, deadline)


def _run_in_partitions(
    fragment: Fragment, rows: Rows, tables: Mapping[str, TableRows], deadline: float
) -> bytes:
    """Run a fragment over many rows, in a new session with several partitions."""
    partitions = min(_PARTITIONS_MAX, os.cpu_count() or 1)
    session = new_session(fragment.memory_max_bytes, partitions)
    with ExitStack() as links:
        for table, table_rows in tables.items():
            filled = table_rows.batches or [empty_batch(rows.schemas[table])]
            shares = [filled[at::partitions] for at in range(partitions)]
            name = quoted(f"{table} in memory") if table_rows.files else quoted(table)
            session.register_record_batches(name, [share for share in shares if share])
            if table_rows.files:
                assert isinstance(rows, RowsWithFiles), "others have no files"
                folder = links.enter_context(_LinkFolder(rows.scratch, table_rows))
                _add_files(session, table, rows.schemas[table], folder, fragment.until_us)
        frame = open_frame(session, fragment.sql, fragment.tables, dict(fragment.values))
        return _collect(frame, _batches, fragment, deadline)


def _tables(fragment: Fragment, rows: Rows) -> dict[str, TableRows]:
    missing = [table for table in fragment.tables if table not in rows.schemas]
    if missing:
        raise TelemetryError(f"this host has no table {missing[0]}: update mesh-telemetry on it")
    since_us = since_us_of(fragment, rows.schemas)
    found = {}
    for table in fragment.tables:
        bounds = since_us.get(table), fragment.until_us
        if isinstance(rows, RowsWithFiles):
            found[table] = rows.table_rows(table, *bounds)
        else:
            found[table] = TableRows(rows.batches(table, *bounds))
    return found


class _LinkFolder(tempfile.TemporaryDirectory[str]):
    """A folder with links to selected files, because the engine reads all files of a folder.

    Files of other time ranges are left out, and so are files written while the query runs.
    """

    def __init__(self, scratch: Path, table_rows: TableRows) -> None:
        super().__init__(prefix="files-", dir=scratch, ignore_cleanup_errors=True)
        for stored in table_rows.files:
            os.symlink(os.path.abspath(stored.path), os.path.join(self.name, stored.name))


def _add_files(
    session: datafusion.SessionContext,
    table: str,
    schema: pa.Schema,
    folder: str,
    until_us: int | None,
) -> None:
    """Register a view over the rows in memory and the rows in files."""
    stored = f"{table} in files"
    session.register_parquet(quoted(stored), f"{folder}/", schema=schema)
    columns = ", ".join(quoted(name) for name in schema.names)
    bound = "" if until_us is None else f" WHERE {quoted(TIME_COLUMN)} <= {int(until_us)}"
    both = session.sql(
        f"SELECT {columns} FROM {quoted(f'{table} in memory')}"
        f" UNION ALL SELECT {columns} FROM {quoted(stored)}{bound}"
    )
    session.register_view(quoted(table), both)


def _gives_few(frame: datafusion.DataFrame, tables: Mapping[str, Sequence[pa.RecordBatch]]) -> bool:
    """Return whether a statement returns so few rows that they may all be held in memory."""
    plan = frame.logical_plan().display_indent()
    if _MULTIPLYING.search(plan) or not all(map(_BOUNDED.match, plan.splitlines())):
        return False
    most = 1
    for name in scanned_tables(plan):
        if name not in tables:
            return False
        most *= 1 + sum(batch.num_rows for batch in tables[name])
    return most <= _FEW_ROWS_MAX


def _collect(
    frame: datafusion.DataFrame,
    read: Callable[[datafusion.DataFrame], Iterable[pa.RecordBatch]],
    fragment: Fragment,
    deadline: float,
) -> bytes:
    schema = plain_schema(frame.schema())
    batches: list[pa.RecordBatch] = []
    bytes_max = fragment.result_bytes_max or fragment.memory_max_bytes
    row_count = byte_count = 0
    for batch in read(frame):
        row_count += batch.num_rows
        byte_count += batch.nbytes
        if row_count > fragment.rows_max:
            raise QueryError(
                f"{TOO_MUCH}more than {fragment.rows_max} rows to send: filter, aggregate, or"
                " limit them"
            )
        if byte_count > bytes_max:
            raise QueryError(
                f"{TOO_MUCH}more than {bytes_max} bytes to send: filter,"
                " aggregate, or name fewer columns"
            )
        if time.monotonic() > deadline:
            raise DeadlineExceeded
        if batch.num_rows:
            batches.append(cast_batch(batch, schema))
    return _written(batches, schema, byte_count)


def _batches(frame: datafusion.DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield batches as they are computed."""
    try:
        for batch in frame.execute_stream():
            yield batch.to_pyarrow()
    except Exception as error:
        raise _query_error(error) from None


def _all_batches(frame: datafusion.DataFrame) -> list[pa.RecordBatch]:
    """Return all rows at once, which is faster because no thread has to wake another one."""
    try:
        made: list[pa.RecordBatch] = frame.collect()
    except Exception as error:
        raise _query_error(error) from None
    return made


def _query_error(error: Exception) -> QueryError:
    text = readable(str(error))
    if "Resources exhausted" in text:
        return QueryError(f"{TOO_MUCH}out of its memory ({text}): filter or aggregate more")
    return QueryError(f"{QUERY_FAULT}{text}")


def _written(batches: list[pa.RecordBatch], schema: pa.Schema, byte_count: int) -> bytes:
    compression = "lz4" if byte_count >= _COMPRESSED_BYTES_MIN else None
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())
