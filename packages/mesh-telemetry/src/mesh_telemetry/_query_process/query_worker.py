"""Work of a query process: runs fragments over the rows of its host, and runs queries."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from mesh_telemetry._errors import QueryError, TelemetryError
from mesh_telemetry._query.deadline import DeadlineExceeded
from mesh_telemetry._query.engine import run_until
from mesh_telemetry._query.fragment import (
    QUERY_FAULT,
    TOO_MUCH,
    Fragment,
    FragmentReply,
    QueriedHost,
)
from mesh_telemetry._query.plain_json import plain_result
from mesh_telemetry._query.query import Query, QueryLimits
from mesh_telemetry._query.query_plan import QueryPlans
from mesh_telemetry._query.query_request import QueryReply, plain_coverage
from mesh_telemetry._query.session_cache import SessionCache
from mesh_telemetry._query_process.limits import (
    SLACK_BYTES,
    UnlimitedRows,
    limit_cpu,
    limited_memory,
)
from mesh_telemetry._rows.added_tables import AddedTable
from mesh_telemetry._rows.schemas import TABLES
from mesh_telemetry._tables.extended_rows import ExtendedRows
from mesh_telemetry._tables.host_tables import HostTables

if TYPE_CHECKING:
    from mesh_telemetry._query.coverage import QueryResult
    from mesh_telemetry._query.query_request import QueryAttempt, QueryRequest
    from mesh_telemetry._query_process.frame_connection import FrameConnection

__all__ = ["QueryWorker"]

_CATALOGS_MAX = 4


class QueryWorker:
    """Runs fragments and queries, one at a time.

    Args:
        connection: The connection to the telemetry process, which can send fragments to all hosts.
        folder: The folder of the host.
        cache_bytes: Memory for tables that are decoded from segments, in bytes.
        retention_s: The maximum age of rows, in seconds.
        spill: The folder with evicted rows of this host, if they are kept.
        own_proc: The telemetry process, which appears in no table.
        scratch: A folder in which this process may create a subfolder for links to files.
    """

    def __init__(
        self,
        connection: FrameConnection,
        *,
        folder: str,
        cache_bytes: int,
        retention_s: float,
        spill: str | None,
        own_proc: int,
        scratch: str,
    ) -> None:
        self._connection = connection
        links = Path(scratch, str(os.getpid()))
        links.mkdir(mode=0o700, exist_ok=True)
        self._tables = HostTables(
            Path(folder),
            cache_bytes=cache_bytes,
            retention_s=retention_s,
            spill=None if spill is None else Path(spill),
            own_proc=own_proc,
            scratch=links,
        )
        self._sessions = SessionCache()
        # By the added tables in pickled form.
        self._catalogs: dict[bytes, tuple[tuple[AddedTable, ...], QueryPlans]] = {}

    def fragment(self, fragment: Fragment) -> bytes:
        """Run a fragment over the rows of this host; return an Arrow stream.

        Raises:
            QueryError: The query is at fault.
            TelemetryError: This host cannot run it.
        """
        limit_cpu(fragment.deadline_s)
        with limited_memory(fragment.memory_max_bytes + SLACK_BYTES):
            return self._run(fragment)

    def query(self, attempt: QueryAttempt) -> bytes:
        """Run a query; return the reply in the form in which it is sent.

        Raises:
            QueryError: The query is invalid, or exceeds its limits.
            CoverageError: No host replied, or a host did not reply and all were required.
            TelemetryError: The query timed out.
        """
        request = attempt.request
        limits = QueryLimits(result_bytes_max=request.bytes_max)
        # After late hosts were left out, a quarter of the timeout is added for the remaining work.
        limit_cpu(attempt.timeout_s * 1.25)
        with limited_memory(limits.memory_max_bytes + SLACK_BYTES):
            added, plans = self._catalog(request.added)
            query = Query(request.sql, request.parameters, plans.schemas, limits, plans)
            if request.form == "columns":
                return QueryReply({}, query.schema.serialize().to_pybytes()).packed()
            if request.form == "stream":
                streamed = query.streamed(request.until_us, attempt.timeout_s)
                if streamed is not None:
                    return QueryReply({"stream": streamed.plain()}, b"").packed()
            result = query.run(
                _HostsOfQuery(self, attempt.only_host, added).run,
                until_us=request.until_us,
                timeout_s=attempt.timeout_s,
                require_full=request.require_full,
                is_one_host=attempt.only_host is not None,
            )
            return _encoded(result, request).packed()

    def _catalog(self, added: bytes) -> tuple[tuple[AddedTable, ...], QueryPlans]:
        found = self._catalogs.get(added)
        if found is None:
            tables: tuple[AddedTable, ...] = pickle.loads(added)
            schemas = {**TABLES, **{one.name: one.schema for one in tables}}
            while len(self._catalogs) >= _CATALOGS_MAX:
                del self._catalogs[next(iter(self._catalogs))]
            found = self._catalogs[added] = tables, QueryPlans(schemas)
        return found

    def _run(self, fragment: Fragment) -> bytes:
        deadline = time.monotonic() + fragment.deadline_s
        recorded = ["rows"] if any(not one.is_live for one in fragment.added) else []
        tables = self._tables.for_query([*fragment.tables, *recorded])
        rows = UnlimitedRows(ExtendedRows(tables, fragment.added))
        try:
            return run_until(fragment, rows, deadline, self._sessions)
        except QueryError as error:
            if str(error).startswith((QUERY_FAULT, TOO_MUCH)):
                raise
            raise QueryError(f"{QUERY_FAULT}{error}") from None
        except DeadlineExceeded:
            raise TelemetryError(
                f"the query was not finished after {fragment.deadline_s:.3g} s: increase the"
                " timeout, or filter more"
            ) from None


class _HostsOfQuery:
    """The hosts that a query covers: this host only, or all hosts through the connection."""

    def __init__(
        self, worker: QueryWorker, only_host: str | None, added: tuple[AddedTable, ...]
    ) -> None:
        self._worker = worker
        self._only_host = only_host
        self._added = added

    def run(self, fragment: Fragment) -> Iterable[QueriedHost | FragmentReply]:
        """Run a fragment on the hosts, and return their replies."""
        added = tuple(one for one in self._added if one.name in fragment.tables)
        fragment = replace(fragment, added=added) if added else fragment
        if self._only_host is None:
            return self._worker._connection.run_on_hosts(fragment)
        try:
            body = self._worker._run(fragment)
            return [FragmentReply(self._only_host, body, None)]
        except TelemetryError as error:
            return [FragmentReply(self._only_host, None, str(error).partition("\n")[0])]


def _encoded(result: QueryResult, request: QueryRequest) -> QueryReply:
    if request.form == "json":
        body: bytes | memoryview = json.dumps(plain_result(result), allow_nan=False).encode()
    else:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, result.table.schema) as writer:
            writer.write_table(result.table)
        body = memoryview(sink.getvalue())
    if request.bytes_max is not None and len(body) > request.bytes_max:
        raise QueryError(
            f"the result exceeds {request.bytes_max} bytes: filter, aggregate, or limit it"
        )
    return QueryReply({"coverage": plain_coverage(result.coverage)}, body)
