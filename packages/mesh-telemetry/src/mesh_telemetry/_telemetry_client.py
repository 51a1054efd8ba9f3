"""The operations of `Telemetry` that need Arrow: queries, stacks, traces, exports and servers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_telemetry._archive.export import save
from mesh_telemetry._dash.dashboard import Dashboard, QueryRunner
from mesh_telemetry._debug.debugging import Debugging
from mesh_telemetry._debug.routes import debug_routes
from mesh_telemetry._events.program_line import program_line
from mesh_telemetry._hangs.hang_watch import ProcessStates, look_for_hangs
from mesh_telemetry._hangs.routes import hang_routes
from mesh_telemetry._hangs.slow_ranks import find_slow_ranks
from mesh_telemetry._heap.options import HeapOptions
from mesh_telemetry._heap.requests import heap_snapshot_of
from mesh_telemetry._heap.routes import heap_routes
from mesh_telemetry._profile.file import trace_path, write_trace
from mesh_telemetry._profile.routes import profile_routes
from mesh_telemetry._prometheus.job_metrics import JobMetrics
from mesh_telemetry._prometheus.routes import prometheus_routes
from mesh_telemetry._query.client import QueryClient, QueryOptions
from mesh_telemetry._query.moments import microseconds
from mesh_telemetry._rows.added_tables import table_docs
from mesh_telemetry._rows.schemas import schema_of
from mesh_telemetry._serve.actions import action_routes
from mesh_telemetry._serve.scopes import Tokens
from mesh_telemetry._serve.served_queries import ServedQueries
from mesh_telemetry._serve.serving import Serving
from mesh_telemetry._stacks.dump import DumpOptions
from mesh_telemetry._stacks.flame_graph import FlameOptions
from mesh_telemetry._stacks.pyspy_routes import pyspy_routes
from mesh_telemetry._stacks.requests import dump_of, flame_graph_of, store_dump_of
from mesh_telemetry._steps.causes import with_causes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from typing import Any

    import pyarrow as pa

    from mesh_telemetry._hangs.hang import Hang
    from mesh_telemetry._hangs.slow_ranks import SlowRank
    from mesh_telemetry._heap.snapshot import HeapSnapshot
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._profile.file import TraceFile
    from mesh_telemetry._query.coverage import Coverage, QueryResult
    from mesh_telemetry._query.deadline import Cancellation
    from mesh_telemetry._query.stream import Stream
    from mesh_telemetry._serve.routes import Route
    from mesh_telemetry._sources import SourceTable
    from mesh_telemetry._stacks.dump import StackDump
    from mesh_telemetry._stacks.flame_graph import FlameGraph

    Parameters = Sequence[object] | Mapping[str, object] | None

__all__ = ["TelemetryClient"]

# Timeout in seconds for one of the queries of a trace.
_LONG_S = 60.0
_HOSTS_S = 10.0


class TelemetryClient:
    """Sends the requests of a program to its hosts, and serves the requests of other programs.

    The methods have the arguments, results and errors of the methods of `Telemetry`.

    Args:
        own_tables: The tables that the program adds.
        coordinator: Returns the actor that knows the hosts, or raises `TelemetryError` if telemetry
            is not started.
        debug_on_failure: `Telemetry.debug_on_failure`.
    """

    def __init__(
        self,
        own_tables: Mapping[str, SourceTable],
        coordinator: Callable[[], Coordinator],
        debug_on_failure: Callable[..., None],
    ) -> None:
        self._own_tables = own_tables
        self._coordinator = coordinator
        self._debug_on_failure = debug_on_failure
        self._queries: QueryClient | None = None

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the schemas of all tables, by name."""
        return {name: schema_of(doc) for name, doc in table_docs(self._own_tables).items()}

    def query(
        self,
        sql: str,
        params: Parameters = None,
        *,
        as_of: float | datetime | None = None,
        timeout: float = 10.0,
        require_full: bool = False,
    ) -> QueryResult:
        """Query all hosts with SQL."""
        options = _options(timeout, require_full)
        client = self._query_client()
        request = client.request(sql, params, microseconds(as_of), "arrow", options)
        return client.query(request, options)

    def stream(
        self,
        sql: str,
        params: Parameters,
        as_of: float | datetime | None,
        timeout: float,
        require_full: bool,
    ) -> Stream:
        """Query all hosts, and return batches as hosts reply."""
        options = _options(timeout, require_full)
        client = self._query_client()
        request = client.request(sql, params, microseconds(as_of), "stream", options)
        return client.stream(request, options)

    def pyspy_dump(
        self,
        where: str | Sequence[str] | None,
        *,
        native: bool,
        locals: bool,
        subprocesses: bool,
        timeout: float,
    ) -> StackDump:
        """Take the stacks of all recorded processes with py-spy, and store them for queries."""
        if not timeout > 0:
            raise ValueError(f"timeout {timeout} is not positive")
        procs = where
        if isinstance(where, str):
            sql = f"select proc from procs where state <> 'dead' and (\n{where}\n)"
            procs = self.query(sql, timeout=timeout).table.column("proc").to_pylist()
        options = DumpOptions(native, locals, subprocesses)
        return dump_of(self._coordinator(), procs, options, timeout)

    def store_pyspy_dump(self, dump_id: str, proc: str, dump_json: str, timeout: float) -> None:
        """Store a dump of stacks that another program has made with py-spy, for queries."""
        store_dump_of(self._coordinator(), dump_id, proc, dump_json, timeout)

    def flame_graph(
        self,
        proc: str | Sequence[str],
        *,
        seconds: float,
        rate: int,
        native: bool,
        idle: bool,
        path: str | os.PathLike[str] | None,
    ) -> FlameGraph:
        """Sample the stacks of processes for some seconds, with py-spy on their hosts."""
        procs = [proc] if isinstance(proc, str) else list(proc)
        options = FlameOptions(seconds, rate, native, idle)
        return flame_graph_of(self._coordinator(), procs, options, path)

    def heap_snapshot(
        self,
        proc: str | Sequence[str],
        *,
        seconds: float,
        peak: bool,
        native: bool,
        objects: bool,
        path: str | os.PathLike[str] | None,
    ) -> HeapSnapshot:
        """Track the allocations of processes for some seconds, with memray in these processes."""
        procs = [proc] if isinstance(proc, str) else list(proc)
        options = HeapOptions(seconds, peak, native, objects)
        return heap_snapshot_of(self._coordinator(), procs, options, path)

    def save(self, folder: str | Path, timeout: float, require_full: bool) -> Coverage:
        """Write all current rows of all hosts to a directory on this machine, for `Archive`."""

        def query(sql: str, as_of_us: int | None) -> QueryResult:
            as_of = None if as_of_us is None else as_of_us / 1e6
            return self.query(sql, as_of=as_of, timeout=timeout, require_full=require_full)

        return save(query, Path(folder))

    def export_perfetto_trace(
        self,
        path: str | os.PathLike[str] | None,
        since: float | datetime | None,
        until: float | datetime | None,
    ) -> TraceFile:
        """Write a trace of actors and their messages for ui.perfetto.dev."""
        until_us = microseconds(time.time() if until is None else until)
        assert until_us is not None, "it is a time"
        self._coordinator()
        return write_trace(
            trace_path(path), self._run_long_query, self.tables(), microseconds(since), until_us
        )

    def why(self) -> list[Hang]:
        """Return which ranks keep others waiting."""
        return look_for_hangs(self._process_states(), 0.0)

    def slow_ranks(self) -> list[SlowRank]:
        """Return which ranks make others wait in every collective."""
        found = find_slow_ranks(self._process_states().now())
        return with_causes(found, self._plain_rows) if found else []

    def _plain_rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.query(sql, values).table.to_pylist()
        return rows

    def serve(
        self, port: int, flight_port: int, token: str | None, act_token: str | None
    ) -> Serving:
        """Serve queries of other programs on this machine until the result is closed."""
        queries = ServedQueries(self._query_client())
        dashboard = Dashboard(
            QueryRunner(self.query), table_docs(self._own_tables), program=program_line()
        )
        return Serving(
            queries,
            self.tables(),
            self._routes(),
            dashboard,
            port,
            flight_port,
            Tokens.random(token, act_token),
        )

    def _routes(self) -> list[Route]:
        """Return the routes of `serve` other than SQL queries."""
        return [
            *action_routes(self._coordinator()),
            *debug_routes(lambda: Debugging(self._coordinator()), self._debug_on_failure),
            *hang_routes(self.why, self.slow_ranks),
            *profile_routes(self._run_long_query, self.tables()),
            *prometheus_routes(JobMetrics(self._coordinator)),
            *pyspy_routes(self.pyspy_dump, self._sample_stacks),
            *heap_routes(self._track_heap),
        ]

    def _process_states(self) -> ProcessStates:
        coordinator = self._coordinator()
        return ProcessStates(lambda: coordinator.hosts.call_one().get(_HOSTS_S))

    def _sample_stacks(
        self, proc: str, options: FlameOptions, cancellation: Cancellation
    ) -> FlameGraph:
        """Do the same as `flame_graph` for one process, and stop when it is cancelled."""
        return flame_graph_of(self._coordinator(), [proc], options, None, cancellation)

    def _track_heap(
        self, proc: str, options: HeapOptions, cancellation: Cancellation
    ) -> HeapSnapshot:
        """Do the same as `heap_snapshot` for one process, and stop when it is cancelled."""
        return heap_snapshot_of(self._coordinator(), [proc], options, cancellation=cancellation)

    def _run_long_query(self, sql: str, until_us: int | None) -> QueryResult:
        """Run a query with a long timeout over rows up to a time, which the query also contains."""
        # The query has the exact bound. `as_of` only lets hosts skip rows that are much newer.
        until = None if until_us is None else until_us / 1e6 + 1.0
        return self.query(sql, as_of=until, timeout=_LONG_S)

    def _query_client(self) -> QueryClient:
        coordinator = self._coordinator()
        if self._queries is None:
            self._queries = QueryClient(coordinator, self._own_tables, list(self.tables()))
        return self._queries


def _options(timeout: float, require_full: bool) -> QueryOptions:
    if not timeout > 0:
        raise ValueError(f"timeout {timeout} is not positive")
    return QueryOptions(timeout, require_full)
