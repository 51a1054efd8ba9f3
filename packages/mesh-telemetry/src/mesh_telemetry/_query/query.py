"""A query over all hosts: planned and finished here, and computed on the hosts with the rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import datafusion
import pyarrow as pa

from mesh_telemetry._errors import QueryError, TelemetryError
from mesh_telemetry._plan.quoting import quoted
from mesh_telemetry._plan.semi_joins import chosen, count_statement, useful_semi_joins, with_keys
from mesh_telemetry._plan.split import Split, split
from mesh_telemetry._plan.units import SemiJoin, Unit
from mesh_telemetry._query.coverage import QueryResult
from mesh_telemetry._query.deadline import DeadlineExceeded, within
from mesh_telemetry._query.fragment import Fragment
from mesh_telemetry._query.host_replies import HostReplies, SendFragment
from mesh_telemetry._query.query_limits import QueryLimits
from mesh_telemetry._query.query_plan import QueryPlans, open_query
from mesh_telemetry._query.session import readable
from mesh_telemetry._query.stream import Stream
from mesh_telemetry._query.streaming_query import StreamingQuery
from mesh_telemetry._rows.plain_types import plain_table

__all__ = ["Query", "QueryLimits"]

_STREAM_ROWS = 1 << 16
_COUNT_SCHEMA = pa.schema([("unit", pa.int64()), ("row_count", pa.int64())])
_WAYS = {
    "rows": "the rows that it needs",
    "groups": "a row for each group",
    "top": "its first rows",
    "scan": "the columns that it needs",
}


class Query:
    """One SQL query, which can be run once.

    Args:
        sql: A query that only reads. With the prefix `EXPLAIN`, the result describes what would be
            shipped. `AS OF <time>` after the query or a table excludes later rows from the whole
            query.
        parameters: The values of `$1` and so on, of `?`, or of `$name`; they never become SQL.
        schemas: The tables that hosts have.
        limits: The limits of the query.
        plans: Cached plans of earlier queries over the same tables.

    Raises:
        QueryError: The query is invalid.

    Example:
        >>> import pyarrow as pa
        >>> query = Query("SELECT 1 + $1 AS two", [1], {"t": pa.schema([("x", pa.int64())])})
        >>> query.run(lambda fragment: []).table.to_pylist()
        [{'two': 2}]
    """

    def __init__(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] | None,
        schemas: Mapping[str, pa.Schema],
        limits: QueryLimits | None = None,
        plans: QueryPlans | None = None,
    ) -> None:
        self._limits = limits or QueryLimits()
        self._known = schemas
        memory_max_bytes = self._limits.memory_max_bytes
        self._planned = (plans or QueryPlans(schemas)).plan(sql, parameters, memory_max_bytes)
        self._has_run = False

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return self._planned.wanted

    def run(
        self,
        send_fragment: SendFragment,
        *,
        until_us: int | None = None,
        timeout_s: float = 10.0,
        require_full: bool = False,
        is_one_host: bool = False,
    ) -> QueryResult:
        """Send fragments to the hosts, and compute the result from their rows.

        Args:
            send_fragment: Sends a fragment to every host, and yields one reply of each as they
                arrive. It is called in a separate thread.
            until_us: Ignore later rows, in microseconds since the epoch; `AS OF` in the query takes
                precedence.
            timeout_s: The time limit in seconds. Hosts that are late count as failed.
            require_full: Whether a failed host is an error.
            is_one_host: Whether there is only one host, which then computes the whole result.
                `send_fragment` is then called in the thread of the caller, and must meet the
                deadline of the fragment.

        Raises:
            QueryError: The query fails on the rows, or exceeds its limits.
            CoverageError: No host replied, or a host did not reply and `require_full` is true.
            TelemetryError: The query timed out, or was run before.
        """
        self._begin()
        deadline = time.monotonic() + timeout_s
        host_replies = HostReplies(send_fragment, deadline, self._limits.memory_max_bytes)
        until_us = until_us if self._planned.text.as_of_us is None else self._planned.text.as_of_us
        is_whole = is_one_host and self._can_be_whole()
        if self._planned.text.is_explained:
            explained = self._explained_whole() if is_whole else self._explained()
            return QueryResult(explained, host_replies.coverage())
        if is_whole:
            table = host_replies.run_on_only_host(*self._whole(until_us, deadline))
            host_replies.check(require_full)
            return QueryResult(table, host_replies.coverage())
        self._ship(host_replies, until_us, deadline)
        host_replies.check(require_full)
        # Late hosts may have used up all the time, although little work is left.
        end = max(deadline, time.monotonic() + timeout_s / 4)
        try:
            table = within(lambda: self._finished(end), end)
        except DeadlineExceeded:
            raise TelemetryError(
                f"the query was not finished after {timeout_s:.3g} s: increase the timeout, or"
                " filter more"
            ) from None
        return QueryResult(table, host_replies.coverage())

    def stream(
        self,
        send_fragment: SendFragment,
        *,
        until_us: int | None = None,
        timeout_s: float = 10.0,
        require_full: bool = False,
    ) -> Stream:
        """Send the query to the hosts, and yield rows as they arrive if they need no further work.

        Otherwise the result of `run` is returned in batches. Takes the same arguments and raises
        the same errors as `run`, including while the stream is read.
        """
        streamed = self.streamed(until_us, timeout_s)
        if streamed is None:
            found = self.run(
                send_fragment, until_us=until_us, timeout_s=timeout_s, require_full=require_full
            )
            batches = found.table.to_batches(max_chunksize=_STREAM_ROWS)
            return Stream(self._planned.wanted, iter(batches), lambda: found.coverage)
        self._begin()
        return streamed.stream(
            send_fragment, timeout_s, self._limits.memory_max_bytes, require_full
        )

    def streamed(self, until_us: int | None, timeout_s: float) -> StreamingQuery | None:
        """Return the fragment of a query whose rows are passed on without further work.

        Returns:
            The fragment with the columns of the result; None if `run` must finish the query.
        """
        whole = self._split.whole
        if whole is None or self._planned.text.is_explained:
            return None
        until_us = until_us if self._planned.text.as_of_us is None else self._planned.text.as_of_us
        deadline = time.monotonic() + timeout_s
        fragment = self._fragment(whole.sql, (whole.table,), until_us, deadline)
        fragment = replace(fragment, result_bytes_max=self._limits.result_bytes_max)
        return StreamingQuery(fragment, whole.schema, self._planned.wanted, self._split.rows_max)

    def _begin(self) -> None:
        if self._has_run:
            raise TelemetryError("the query has already been run: create a new one")
        self._has_run = True

    @cached_property
    def _opened(self) -> tuple[datafusion.SessionContext, Split]:
        """The session that finishes the result, and the units that are shipped to it."""
        memory_max_bytes = self._limits.memory_max_bytes
        session, frame = open_query(self._planned, self._known, memory_max_bytes)
        try:
            return session, split(frame, session, self._planned.schemas)
        except Exception as error:  # DataFusion has no narrower class
            raise QueryError(f"{readable(str(error))}: correct the query") from None

    @property
    def _session(self) -> datafusion.SessionContext:
        return self._opened[0]

    @property
    def _split(self) -> Split:
        return self._opened[1]

    def _can_be_whole(self) -> bool:
        # A batch without columns loses its number of rows when it is sent.
        return self._planned.tables is not None and bool(self._planned.wanted.names)

    def _whole(self, until_us: int | None, deadline: float) -> tuple[str, Fragment, pa.Schema]:
        """Return the whole query as one fragment, with the tables that it is accounted to."""
        tables = self._planned.tables or ()
        fragment = self._fragment(self._planned.text.sql, tables, until_us, deadline)
        fragment = replace(
            fragment,
            values=self._planned.values,
            result_bytes_max=self._limits.result_bytes_max,
        )
        return ", ".join(tables), fragment, self._planned.wanted

    def _ship(self, host_replies: HostReplies, until_us: int | None, deadline: float) -> None:
        semi_joins = self._semi_joins(host_replies, until_us, deadline)
        waiting = list(self._split.units)
        came: dict[Unit, pa.Table] = {}
        while waiting:
            held_back = {link.reduced for link in semi_joins if link.keys not in came}
            now = [unit for unit in waiting if unit not in held_back]
            assert now, "semi_joins go from fewer rows to more, so that one unit waits for none"
            fragments = []
            for unit in now:
                filters = [
                    (link.reduced_at, came[link.keys], link.keys_at)
                    for link in semi_joins
                    if link.reduced is unit
                ]
                sql = with_keys(unit, filters, self._limits.keys_max)
                fragment = self._fragment(sql, (unit.table,), until_us, deadline)
                fragments.append((unit.table, fragment, unit.schema))
            for unit, table in zip(now, host_replies.run(fragments), strict=True):
                came[unit] = table
            waiting = [unit for unit in waiting if unit not in came]
        for unit, table in came.items():
            self._fill(unit, table)

    def _semi_joins(
        self, host_replies: HostReplies, until_us: int | None, deadline: float
    ) -> list[SemiJoin]:
        """Query the row counts of both sides of joins, if shipping one side first may help."""
        semi_joins = useful_semi_joins(self._split.semi_joins)
        if not semi_joins:
            return []
        units = list(
            dict.fromkeys(unit for link in semi_joins for unit in (link.keys, link.reduced))
        )
        tables = tuple(sorted({unit.table for unit in units}))
        fragment = self._fragment(count_statement(units), tables, until_us, deadline)
        (counts,) = host_replies.run([(tables[0], fragment, _COUNT_SCHEMA)])
        row_counts = dict.fromkeys(units, 0)
        for row in counts.to_pylist():
            row_counts[units[row["unit"]]] += row["row_count"]
        return chosen(semi_joins, row_counts, self._limits.reduced_rows_min)

    def _fragment(
        self, sql: str, tables: tuple[str, ...], until_us: int | None, deadline: float
    ) -> Fragment:
        return Fragment(
            sql,
            tables,
            until_us,
            self._limits.rows_max,
            self._limits.host_memory_max_bytes,
            max(0.0, deadline - time.monotonic()),
        )

    def _fill(self, unit: Unit, table: pa.Table) -> None:
        if not table.num_rows:
            return
        if unit.way == "scan":
            whole = self._planned.schemas[unit.table]
            columns = [
                table.column(field.name)
                if field.name in table.column_names
                else pa.nulls(table.num_rows, field.type)
                for field in whole
            ]
            table = pa.Table.from_arrays(columns, schema=whole)
        self._session.from_arrow(table).write_table(quoted(unit.fills))

    def _finished(self, deadline: float) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        bytes_max = self._limits.result_bytes_max or self._limits.memory_max_bytes
        byte_count = 0
        try:
            for batch in self._split.frame.execute_stream():
                batches.append(batch.to_pyarrow())
                byte_count += batches[-1].nbytes
                if byte_count > bytes_max:
                    raise QueryError(f"the result exceeds {bytes_max} bytes: aggregate or limit it")
                if time.monotonic() > deadline:
                    raise DeadlineExceeded
        except (QueryError, DeadlineExceeded):
            raise
        except Exception as error:  # DataFusion has no narrower class
            text = readable(str(error))
            raise QueryError(f"{text}: correct the query, or reduce its memory use") from None
        schema = batches[0].schema if batches else self._split.frame.schema()
        table = plain_table(pa.Table.from_batches(batches, schema))
        if not self._planned.wanted.names:
            return table
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(table.columns, self._planned.wanted, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self._planned.wanted)

    def _explained_whole(self) -> pa.Table:
        step = "the only host computes the result"
        return pa.table({"step": [step], "plan": [self._planned.text.sql]})

    def _explained(self) -> pa.Table:
        steps = [
            (f"every host sends {_WAYS[unit.way]} of {unit.table}", unit.sql)
            for unit in self._split.units
        ]
        for link in useful_semi_joins(self._split.semi_joins):
            steps.append(
                (
                    f"{link.reduced.table} may wait for {link.keys.table}",
                    "only rows with matching keys are sent, if that reduces them",
                )
            )
        rest = self._split.frame.optimized_logical_plan().display_indent()
        steps.append(("finished in the querying process", rest))
        return pa.table({"step": [step for step, _ in steps], "plan": [plan for _, plan in steps]})
