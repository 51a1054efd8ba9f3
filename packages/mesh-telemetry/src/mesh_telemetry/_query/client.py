"""Sends queries of this process to the query processes of a host, and reads their replies."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from mesh_core import MeshError, SupervisionError
from mesh_telemetry._errors import CoverageError, QueryError, TelemetryError, cause_of
from mesh_telemetry._query.coverage import QueryResult
from mesh_telemetry._query.host_list import HostList
from mesh_telemetry._query.host_requests import HostRequests, label
from mesh_telemetry._query.query_request import (
    QueryAttempt,
    QueryReply,
    QueryRequest,
    coverage_from,
)
from mesh_telemetry._query.query_text import scalars_of
from mesh_telemetry._query.stream import Stream
from mesh_telemetry._query.streaming_query import StreamingQuery
from mesh_telemetry._rows.added_tables import added_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mesh_core import Future
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._hosts.host_handle import HostHandle
    from mesh_telemetry._query.deadline import Cancellation
    from mesh_telemetry._query.fragment import Fragment
    from mesh_telemetry._query.query_request import Form
    from mesh_telemetry._sources import SourceTable

__all__ = ["QueryClient", "QueryOptions"]

_STREAM_ROWS = 1 << 16
_STREAM_BYTES_MAX = 1 << 30
# Share of the timeout that is added for finishing after late hosts were left out, and seconds for
# the reply to arrive.
_FINISH_SHARE = 0.25
_REPLY_TIMEOUT_S = 2.0


class QueryOptions(NamedTuple):
    """How a query is sent."""

    timeout_s: float
    require_full: bool = False
    is_outside: bool = False
    """Whether the query comes from another program."""
    bytes_max: int | None = None
    """The maximum size of the reply; None for the general limits of queries."""
    cancellation: Cancellation | None = None


class QueryClient:
    """Sends queries to the hosts of a program.

    This process does not parse, plan or compute any part of a query.

    Args:
        coordinator: The actor that knows the hosts.
        tables: The tables that the program has added.
        names: The names of all tables.
    """

    def __init__(
        self, coordinator: Coordinator, tables: Mapping[str, SourceTable], names: Sequence[str]
    ) -> None:
        self._coordinator = coordinator
        self._hosts = HostList(coordinator)
        self._tables = tables
        self._added = pickle.dumps(added_tables(names, tables))

    def request(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] | None,
        until_us: int | None,
        form: Form,
        options: QueryOptions,
    ) -> QueryRequest:
        """Return a query in the form in which it is sent.

        Raises:
            QueryError: A parameter has no SQL type.
        """
        scalars = scalars_of(parameters)
        return QueryRequest(
            sql, scalars, until_us, options.require_full, form, options.bytes_max, self._added
        )

    def query(self, request: QueryRequest, options: QueryOptions) -> QueryResult:
        """Run a query in the form `arrow`, and return its result.

        Raises:
            QueryError: The query is invalid, or exceeds its limits.
            CoverageError: No host replied, or a host did not reply and all were required.
            TelemetryError: The query timed out or was cancelled.
        """
        return _result_of(self.reply(request, options))

    def stream(self, request: QueryRequest, options: QueryOptions) -> Stream:
        """Run a query in the form `stream`; raises the same errors as `query`."""
        deadline = time.monotonic() + options.timeout_s
        reply = self.reply(request, options)
        plain = reply.head.get("stream")
        if plain is None:
            result = _result_of(reply)
            batches = result.table.to_batches(max_chunksize=_STREAM_ROWS)
            return Stream(result.table.schema, iter(batches), lambda: result.coverage)
        left_s = max(deadline - time.monotonic(), 0.0)
        streamed = StreamingQuery.from_plain(plain, left_s)
        hosts = self._hosts.all(left_s)

        def send(fragment: Fragment) -> HostRequests:
            added = added_tables(fragment.tables, self._tables)
            sent = pickle.dumps(replace(fragment, added=added))
            requests = HostRequests(self._coordinator, hosts, sent, fragment.deadline_s)
            if options.cancellation is not None:
                options.cancellation.call(requests.close)
            return requests

        return streamed.stream(send, left_s, _STREAM_BYTES_MAX, options.require_full)

    def reply(self, request: QueryRequest, options: QueryOptions) -> QueryReply:
        """Return the reply to a query of any form; raises the same errors as `query`."""
        lost: dict[int, str] = {}
        deadline = time.monotonic() + options.timeout_s

        def send(
            hosts: Sequence[HostHandle], on_sent: Callable[[], None], timeout_s: float
        ) -> QueryReply:
            return QueryReply.unpacked(
                self._send_to_first_host(request, options, hosts, on_sent, timeout_s, lost)
            )

        while True:
            count = len(lost)
            try:
                return self._hosts.with_hosts(send, max(deadline - time.monotonic(), 0.0))
            except CoverageError:
                # The host that planned the query is lost; another host can replace it.
                if len(lost) == count or deadline <= time.monotonic():
                    raise

    def _send_to_first_host(
        self,
        request: QueryRequest,
        options: QueryOptions,
        hosts: Sequence[HostHandle],
        on_sent: Callable[[], None],
        timeout_s: float,
        lost: dict[int, str],
    ) -> bytes:
        """Send a query to the first live host, and return its packed reply.

        If that host turns out to be lost and there are others, it is added to `lost`.
        """
        hosts = [
            one._replace(rows=None, error=lost[one.number]) if one.number in lost else one
            for one in hosts
        ]
        alive = [one for one in hosts if one.rows is not None]
        if not alive:
            on_sent()
            raise _no_host([(label(one), one.error or "it is restarting") for one in hosts])
        chosen = alive[0]
        is_only = len(hosts) == 1
        attempt = QueryAttempt(request, timeout_s, label(chosen) if is_only else None)
        assert chosen.rows is not None, "it is alive"
        call = chosen.rows.query.call_one(
            pickle.dumps(attempt),
            timeout_s if is_only else timeout_s * (1 + _FINISH_SHARE),
            options.is_outside,
            None if is_only else (self._coordinator, tuple(hosts)),
        )
        if options.cancellation is not None:
            options.cancellation.call(call.cancel)
        try:
            on_sent()
            return _wait_for_reply(call, timeout_s * (1 + _FINISH_SHARE) + _REPLY_TIMEOUT_S)
        except TimeoutError:
            raise _no_host([(label(chosen), "it did not reply in time")]) from None
        except SupervisionError as error:
            if isinstance(error, TelemetryError):
                raise
            cause = cause_of(error)
            self._coordinator.lost.broadcast(chosen.number, chosen.rows, cause)
            if not is_only:
                lost[chosen.number] = cause
            raise _no_host([(label(chosen), cause)]) from None
        finally:
            # Has no effect if the call has ended.
            call.cancel()


def _wait_for_reply(call: Future[bytes], timeout_s: float) -> bytes:
    try:
        return call.get(timeout_s)
    except (SupervisionError, QueryError, TelemetryError):
        raise
    except MeshError as error:
        raise TelemetryError(f"the query failed: {cause_of(error)}") from error


def _result_of(reply: QueryReply) -> QueryResult:
    with pa.ipc.open_stream(reply.body) as reader:
        table = reader.read_all()
    return QueryResult(table, coverage_from(reply.head["coverage"]))


def _no_host(failed: Sequence[tuple[str, str]]) -> CoverageError:
    causes = "; ".join(f"{host}: {cause}" for host, cause in failed)
    return CoverageError(f"no host replied ({causes}): fix the cause, or try again", tuple(failed))
