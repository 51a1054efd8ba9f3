"""The rows that a trace is generated from, one time window at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mesh_telemetry._profile.clock_offsets import least_delays

if TYPE_CHECKING:
    import pyarrow as pa

    from mesh_telemetry._query.coverage import QueryResult

__all__ = ["ProfileRows", "Window"]

Rows = list[tuple[Any, ...]]
#: Runs a query over rows up to a time in microseconds, or over current rows.
QueryFunction = Callable[[str, int | None], "QueryResult"]

# The number of rows that are in memory at a time.
_WINDOW_ROWS_MAX = 100_000
_SLOTS_MAX = 5_000
_SLOT_US_MIN = 1_000
_PAIRS_MAX = 50_000
_TIMED = (
    "sent_messages",
    "messages",
    "message_status_events",
    "spans",
    "span_events",
    "metric_gauges",
    "metric_sums",
    "metric_histograms",
    "logs",
    "failures",
)


class Window(NamedTuple):
    """The rows from a time until before another; each list is ordered by time."""

    until_us: int
    rows: Mapping[str, Rows]


#: By table, the columns to read; columns that a table does not have are null.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "sent_messages": (
        "timestamp_us", "id", "proc", "actor_mesh_id", "rank", "call", "bytes",
        "sender_actor_id", "endpoint",
    ),
    "messages": ("timestamp_us", "id", "proc", "to_actor_id", "call", "bytes", "endpoint"),
    "message_status_events": ("timestamp_us", "message_id", "proc", "mesh_id", "status", "code"),
    "spans": ("timestamp_us", "id", "proc", "actor_id", "parent_id", "name", "fields_json"),
    "span_events": ("timestamp_us", "id", "proc", "is_error"),
    "metric_gauges": (
        "timestamp_us", "proc", "name", "unit", "attributes_json", "value_f64", "value_i64",
    ),
    "metric_sums": (
        "timestamp_us", "proc", "name", "unit", "attributes_json", "sum_f64", "sum_i64",
    ),
    "metric_histograms": (
        "timestamp_us", "proc", "name", "unit", "attributes_json", "count", "sum_f64",
    ),
    "logs": ("timestamp_us", "proc", "stream", "line"),
    "failures": ("timestamp_us", "proc", "kind", "mesh_id", "reason", "cause"),
}  # fmt: skip
_ONLY = {
    "message_status_events": "status <> 'queued'",
    "span_events": "event_type = 'close'",
}


class ProfileRows:
    """Rows of a time range.

    Args:
        query: Queries the hosts.
        schemas: The existing tables.
        since_us: The start, in microseconds since the epoch; None for the oldest row.
        until_us: The end, exclusive.

    Attributes:
        failed: Hosts that did not reply to a query, with the cause.
    """

    def __init__(
        self,
        query: QueryFunction,
        schemas: Mapping[str, pa.Schema],
        since_us: int | None,
        until_us: int,
    ) -> None:
        self._query = query
        self._schemas = schemas
        self.failed: dict[str, str] = {}
        self.until_us = until_us
        self.since_us = self._first_us() if since_us is None else min(since_us, until_us)

    def procs(self) -> Rows:
        """Return proc, mesh, rank, pid and host of each process, ordered by start time."""
        return self._rows("select proc, mesh, rank, pid, host from procs order by started_us", None)

    def actors(self) -> Rows:
        """Return id, proc, mesh_id, rank and display_name of each actor."""
        return self._rows("select id, proc, mesh_id, rank, display_name from actors", None)

    def meshes(self) -> Rows:
        """Return id and given_name of each mesh."""
        return self._rows("select id, given_name from meshes", None)

    def windows(self) -> Iterator[Window]:
        """Yield all rows in windows that fit into memory."""
        for start_us, end_us, tables in self._window_bounds():
            rows: dict[str, Rows] = {table: [] for table in _TIMED}
            for table in tables:
                rows[table] = self._timed(table, start_us, end_us)
            yield Window(end_us, rows)

    def least_delays(self) -> dict[tuple[int, int], int]:
        """Return the minimum delay of messages from one host to another."""
        between = "call is not null and split_part(proc, '.', 1) <> split_part({}, '.', 1)"
        sent = self._hosts("sent_messages", "id", between.format("to_proc"))
        if not sent:
            return {}
        received = self._hosts("messages", "id", between.format("from_proc"))
        status = "message_status_events"
        finished = self._hosts(status, "message_id", "status in ('complete', 'failed')")
        returned = self._hosts(status, "message_id", "status = 'returned'")

        def pairs() -> Iterator[tuple[int, int, int]]:
            for first, second in ((sent, received), (finished, returned)):
                for number, (here, at_us) in first.items():
                    there, then_us = second.get(number, (here, at_us))
                    if there != here:
                        yield here, there, then_us - at_us

        return least_delays(pairs())

    def _hosts(self, table: str, number: str, condition: str) -> dict[int, tuple[int, int]]:
        """Return host and time of a sample of messages, which is the same for every table."""
        within = self._within(self.since_us, self.until_us)
        count = f"select count(*) from {table} where {within} and {condition}"
        every = (
            self._rows(count, self.until_us)[0][0] // _PAIRS_MAX + 1
            if self._sample_step == 0
            else 1
        )
        self._sample_step = max(self._sample_step, every)
        sql = (
            f"select {number}, proc, timestamp_us from {table} "
            f"where {within} and {condition} and {number} % {self._sample_step} = 0"
        )
        return {
            row[0]: (int(row[1].partition(".")[0]), row[2])
            for row in self._rows(sql, self.until_us)
        }

    _sample_step = 0

    def _first_us(self) -> int:
        found = [
            self._rows(f"select min(timestamp_us) from {table}", self.until_us)[0][0]
            for table in _TIMED
        ]
        return min((one for one in found if one is not None), default=self.until_us)

    def _window_bounds(self) -> Iterator[tuple[int, int, set[str]]]:
        """Split the time range into windows with a limited number of rows, if possible.

        Each is returned with the tables that have rows in it.
        """
        length_us = self.until_us - self.since_us
        slot_us = max(_SLOT_US_MIN, length_us // _SLOTS_MAX + 1)
        counts = self._counts(slot_us)
        start, end, row_count = 0, 0, 0
        tables: set[str] = set()
        for slot in sorted(counts):
            count = sum(counts[slot].values())
            if row_count and row_count + count > _WINDOW_ROWS_MAX:
                yield self.since_us + start * slot_us, self.since_us + end * slot_us, tables
                row_count, tables = 0, set()
            start = start if row_count else slot
            end, row_count = slot + 1, row_count + count
            tables |= counts[slot].keys()
        if row_count:
            last_us = min(self.since_us + end * slot_us, self.until_us)
            yield self.since_us + start * slot_us, last_us, tables

    def _counts(self, slot_us: int) -> dict[int, dict[str, int]]:
        """Count the rows of each table in each time slot."""
        found: dict[int, dict[str, int]] = {}
        within = self._within(self.since_us, self.until_us)
        for table in _TIMED:
            sql = (
                f"select (timestamp_us - {self.since_us}) / {slot_us} as slot, count(*) as n "
                f"from {table} where {within} group by slot"
            )
            for slot, count in self._rows(sql, self.until_us):
                found.setdefault(slot, {})[table] = count
        return found

    def _timed(self, table: str, start_us: int, end_us: int) -> Rows:
        known = self._schemas[table].names
        columns = ", ".join(
            name if name in known else f"cast(null as varchar) as {name}"
            for name in _COLUMNS[table]
        )
        where = self._within(start_us, end_us)
        if table in _ONLY:
            where += f" and {_ONLY[table]}"
        sql = f"select {columns} from {table} where {where} order by timestamp_us"
        return self._rows(sql, end_us)

    def _within(self, start_us: int, end_us: int) -> str:
        return f"timestamp_us >= {start_us} and timestamp_us < {end_us}"

    def _rows(self, sql: str, until_us: int | None) -> Rows:
        result = self._query(sql, until_us)
        for failure in result.coverage.failed:
            self.failed.setdefault(failure.host, failure.cause)
        columns = [column.to_pylist() for column in result.table.columns]
        return list(zip(*columns, strict=True))
