"""Questions in SQL over HTTP: JSON, or Arrow for those who take it."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from threading import BoundedSemaphore
from typing import Any

import pyarrow as pa

from mesh_telemetry._errors import CoverageError, QueryError, TelemetryError
from mesh_telemetry._query.coverage import Answer, Coverage
from mesh_telemetry._query.session import empty_batch
from mesh_telemetry._query.stream import Stream
from mesh_telemetry._serve.access import check_sql
from mesh_telemetry._serve.openapi import OPENAPI
from mesh_telemetry._serve.routes import Refused, Reply, Request, Route, json_reply, known_route

__all__ = ["ARROW", "COVERAGE", "Answering", "Streaming", "plain_answer", "query_routes"]

ARROW = "application/vnd.apache.arrow.stream"
Parameters = Sequence[object] | Mapping[str, object] | None
#: Answers a query with parameters, as of a time in microseconds or now; it is called in several
#: threads, and has a deadline of its own.
Answering = Callable[[str, Parameters, int | None], Answer]

#: The same, a part at a time.
Streaming = Callable[[str, Parameters, int | None], Stream]
#: In the metadata of the last batch of an answer that is streamed, which has no rows.
COVERAGE = "mesh-coverage"

_CONCURRENT_MAX = 8


def query_routes(answer: Answering, stream: Streaming | None = None) -> list[Route]:
    """Gives the routes of questions: `POST /query`, and `GET /openapi.json` that describes it.

    Args:
        answer: Answers a question.
        stream: Answers one a part at a time, for those who ask for that; nobody can if left out.
    """
    slots = BoundedSemaphore(_CONCURRENT_MAX)

    def query(request: Request) -> Reply:
        said = request.json_object()
        question = _question(said)
        check_sql(question[0], request.scope)
        is_arrow = ARROW in request.headers.get("Accept", "")
        if said.get("stream") and not (is_arrow and stream is not None):
            raise Refused(400, "no_stream", f"only Arrow is streamed: accept {ARROW}")
        if not slots.acquire(blocking=False):
            raise Refused(503, "busy", f"{_CONCURRENT_MAX} queries at once: ask again later")
        if said.get("stream") and stream is not None:
            return _streamed(stream, question, slots)
        try:
            with _refusing():
                found = answer(*question)
        finally:
            slots.release()
        if is_arrow:
            coverage = json.dumps(_plain_coverage(found.coverage))
            return Reply(ARROW, _stream(found.table), {"Mesh-Coverage": coverage})
        return json_reply(plain_answer(found))

    return [
        known_route("POST", "/query", query),
        known_route("GET", "/openapi.json", lambda _: json_reply(OPENAPI)),
    ]


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except QueryError as error:
        raise Refused(400, "bad_query", str(error)) from error
    except CoverageError as error:
        raise Refused(502, "no_coverage", str(error)) from error
    except TelemetryError as error:
        raise Refused(500, "failed", str(error)) from error


def _streamed(
    stream: Streaming, question: tuple[str, Parameters, int | None], slots: BoundedSemaphore
) -> Reply:
    """Answers a part at a time; what goes wrong before the first part is refused as ever."""
    pieces = _pieces(stream, question, slots)
    first = next(pieces)
    return Reply(ARROW, _joined(first, pieces))


def _joined(first: bytes, pieces: Generator[bytes, None, None]) -> Iterator[bytes]:
    with closing(pieces):
        yield first
        yield from pieces


def _pieces(
    stream: Streaming, question: tuple[str, Parameters, int | None], slots: BoundedSemaphore
) -> Generator[bytes, None, None]:
    try:
        sink = _Sink()
        with _refusing(), stream(*question) as found:
            first = next(found, None)
            with pa.ipc.new_stream(sink, found.schema) as writer:
                if first is not None:
                    writer.write_batch(first)
                yield sink.take()
                for batch in found:
                    writer.write_batch(batch)
                    yield sink.take()
                coverage = json.dumps(_plain_coverage(found.coverage))
                writer.write_batch(empty_batch(found.schema), custom_metadata={COVERAGE: coverage})
            yield sink.take()
    finally:
        slots.release()


class _Sink(io.RawIOBase):
    """Takes what is written until somebody sends it."""

    def __init__(self) -> None:
        super().__init__()
        self._held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self._held += piece
        return len(piece)

    def take(self) -> bytes:
        """Gives what was written since the last time."""
        taken = bytes(self._held)
        self._held.clear()
        return taken


def plain_answer(answer: Answer) -> dict[str, Any]:
    """Gives an answer as JSON has it: columns, rows and coverage."""
    rows = [
        {name: _json_value(value) for name, value in row.items()}
        for row in answer.table.to_pylist()
    ]
    columns = answer.table.column_names
    return {"columns": columns, "rows": rows, "coverage": _plain_coverage(answer.coverage)}


def _question(said: dict[str, Any]) -> tuple[str, Parameters, int | None]:
    sql, parameters, as_of_us = said.get("sql"), said.get("params"), said.get("as_of")
    if not isinstance(sql, str):
        raise Refused(400, "bad_json", 'no query: send {"sql": "SELECT ..."}')
    if not isinstance(parameters, list | dict | None):
        raise Refused(400, "bad_json", "params: send a list, or an object with names")
    if not isinstance(as_of_us, int | None) or isinstance(as_of_us, bool):
        raise Refused(400, "bad_json", "as_of: send microseconds since the epoch")
    return sql, parameters, as_of_us


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _plain_coverage(coverage: Coverage) -> dict[str, Any]:
    return dataclasses.asdict(coverage) | {"is_full": coverage.is_full}


def _json_value(value: Any) -> Any:
    """Gives what JSON has for a value: text where it has nothing of the kind, null for NaN."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, date | time_of_day):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _json_value(each) for name, each in value.items()}
    return str(value)
