"""HTTP routes for SQL queries, which return JSON or Arrow."""

from __future__ import annotations

import io
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from threading import BoundedSemaphore
from typing import Any, Protocol

import pyarrow as pa

from mesh_telemetry._errors import CoverageError, QueryError, TelemetryError
from mesh_telemetry._query.coverage import QueryResult
from mesh_telemetry._query.deadline import Cancellation
from mesh_telemetry._query.query_request import plain_coverage
from mesh_telemetry._query.stream import Stream
from mesh_telemetry._serve.access import check_sql
from mesh_telemetry._serve.openapi import OPENAPI
from mesh_telemetry._serve.routes import (
    JSON,
    Reply,
    Request,
    RequestError,
    Route,
    json_reply,
    known_route,
)

__all__ = ["ARROW", "COVERAGE", "Queries", "QueryArguments", "query_routes"]

ARROW = "application/vnd.apache.arrow.stream"
Parameters = Sequence[object] | Mapping[str, object] | None
#: SQL, its parameters, and a time in microseconds or None for now.
QueryArguments = tuple[str, Parameters, int | None]
#: Metadata key of the coverage in the last batch of a streamed result, which has no rows.
COVERAGE = "mesh-coverage"

_CONCURRENT_MAX = 8


class Queries(Protocol):
    """Runs queries; each has a deadline, and is cancelled when its client disconnects."""

    def json(self, query: QueryArguments, cancellation: Cancellation) -> bytes:
        """Return the result as JSON."""

    def arrow(self, query: QueryArguments, cancellation: Cancellation) -> QueryResult:
        """Return the result as a table."""

    def stream(self, query: QueryArguments, cancellation: Cancellation) -> Stream:
        """Return the result as a stream of batches."""

    def columns(self, sql: str, parameters: list[object], cancellation: Cancellation) -> pa.Schema:
        """Return the columns of a result without computing it."""


def query_routes(queries: Queries) -> list[Route]:
    """Return the routes `POST /query`, and `GET /openapi.json`, which describes all routes."""
    slots = BoundedSemaphore(_CONCURRENT_MAX)

    def query(request: Request) -> Reply:
        body = request.json_object()
        arguments = _query_arguments(body)
        check_sql(arguments[0], request.scope)
        is_arrow = ARROW in request.headers.get("Accept", "")
        if body.get("stream") and not is_arrow:
            raise RequestError(400, "no_stream", f"only Arrow is streamed: accept {ARROW}")
        if not slots.acquire(blocking=False):
            text = f"too many concurrent queries (limit {_CONCURRENT_MAX}): try again later"
            raise RequestError(503, "busy", text)
        if body.get("stream"):
            return _streamed(_pieces(queries, arguments, request, slots))
        try:
            with request.cancellation() as cancellation, _as_request_errors():
                if not is_arrow:
                    return Reply(JSON, queries.json(arguments, cancellation))
                found = queries.arrow(arguments, cancellation)
        finally:
            slots.release()
        coverage = json.dumps(plain_coverage(found.coverage))
        return Reply(ARROW, _stream(found.table), {"Mesh-Coverage": coverage})

    return [
        known_route("POST", "/query", query),
        known_route("GET", "/openapi.json", lambda _: json_reply(OPENAPI)),
    ]


@contextmanager
def _as_request_errors() -> Iterator[None]:
    try:
        yield
    except QueryError as error:
        raise RequestError(400, "bad_query", str(error)) from error
    except CoverageError as error:
        raise RequestError(502, "no_coverage", str(error)) from error
    except TelemetryError as error:
        raise RequestError(500, "failed", str(error)) from error


def _streamed(pieces: Generator[bytes, None, None]) -> Reply:
    """Return a streamed reply; errors before the first part raise `RequestError`."""
    first = next(pieces)
    return Reply(ARROW, _joined(first, pieces))


def _joined(first: bytes, pieces: Generator[bytes, None, None]) -> Iterator[bytes]:
    with closing(pieces):
        yield first
        yield from pieces


def _pieces(
    queries: Queries, arguments: QueryArguments, request: Request, slots: BoundedSemaphore
) -> Generator[bytes, None, None]:
    try:
        sink = _Buffer()
        with (
            request.cancellation() as cancellation,
            _as_request_errors(),
            queries.stream(arguments, cancellation) as found,
        ):
            first = next(found, None)
            with pa.ipc.new_stream(sink, found.schema) as writer:
                if first is not None:
                    writer.write_batch(first)
                yield sink.take()
                for batch in found:
                    writer.write_batch(batch)
                    yield sink.take()
                coverage = json.dumps(plain_coverage(found.coverage))
                writer.write_batch(_empty_batch(found.schema), custom_metadata={COVERAGE: coverage})
            yield sink.take()
    finally:
        slots.release()


class _Buffer(io.RawIOBase):
    """Buffers written data until it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self._held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self._held += piece
        return len(piece)

    def take(self) -> bytes:
        """Return the data that was written since the last call."""
        taken = bytes(self._held)
        self._held.clear()
        return taken


def _query_arguments(body: dict[str, Any]) -> QueryArguments:
    sql, parameters, as_of_us = body.get("sql"), body.get("params"), body.get("as_of")
    if not isinstance(sql, str):
        raise RequestError(400, "bad_json", 'missing query: send {"sql": "SELECT ..."}')
    if not isinstance(parameters, list | dict | None):
        raise RequestError(400, "bad_json", "invalid params: send a list, or an object with names")
    if not isinstance(as_of_us, int | None) or isinstance(as_of_us, bool):
        raise RequestError(400, "bad_json", "invalid as_of: send microseconds since the epoch")
    return sql, parameters, as_of_us


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    # `_query.session.empty_batch` would load the engine, which this process must not do.
    columns = [pa.array([], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
