"""Queries over HTTP, for what does not speak Python: on loopback, and with a token."""

from __future__ import annotations

import base64
import dataclasses
import hmac
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread
from typing import Any

import pyarrow as pa

from mesh_telemetry._coverage import Answer, Coverage
from mesh_telemetry._errors import CoverageError, QueryError, TelemetryError
from mesh_telemetry._openapi import OPENAPI

__all__ = ["Answering", "QueryServer"]

ARROW = "application/vnd.apache.arrow.stream"
Parameters = Sequence[object] | Mapping[str, object] | None
Answering = Callable[[str, Parameters, int | None], Answer]

_BODY_LEN_MAX = 1 << 20
_SOCKET_TIMEOUT_S = 30.0
_CONCURRENT_MAX = 8
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.05


class QueryServer:
    """Answers `POST /query` until it is closed.

    Args:
        answer: Answers a query with parameters, as of a time in microseconds or now; it is called
            in several threads, and has a deadline of its own.
        token: What each request must bring along as `Authorization: Bearer <token>`.
        port: Where it listens on 127.0.0.1; 0 for any free port.

    Raises:
        TelemetryError: The port is taken, or the token is empty.

    Example:
        >>> import pyarrow as pa
        >>> from mesh_telemetry._coverage import Answer, Coverage
        >>> def answer(sql, parameters, as_of_us):
        ...     return Answer(pa.table({"x": [1]}), Coverage((), (), (), ()))
        >>> with QueryServer(answer, token="secret") as server:
        ...     server.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(self, answer: Answering, token: str, port: int = 0) -> None:
        if not token:
            raise TelemetryError("an empty token lets everybody in: pass a random one")
        slots = BoundedSemaphore(_CONCURRENT_MAX)

        class Handler(_Handler):
            pass

        Handler.answer_query = staticmethod(answer)
        Handler.token = token
        Handler.slots = slots
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise TelemetryError(f"port {port} ({error}): choose another, or 0 for any") from error
        self._server.daemon_threads = True
        self._thread = Thread(
            target=self._server.serve_forever,
            args=(_POLL_S,),
            name="mesh-telemetry-http",
            daemon=True,
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._thread.join(_STOP_TIMEOUT_S)
        self._server.server_close()

    def __enter__(self) -> QueryServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Refused(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(status, code, text)
        self.status, self.code, self.text = status, code, text


class _Handler(BaseHTTPRequestHandler):
    answer_query: Answering
    token: str
    slots: BoundedSemaphore
    protocol_version = "HTTP/1.1"
    server_version = "mesh-telemetry"
    sys_version = ""
    timeout = _SOCKET_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: what is asked may be private."""

    def do_GET(self) -> None:
        self._reply(self._get)

    def do_POST(self) -> None:
        self._reply(self._post)

    def _reply(self, work: Callable[[], tuple[str, bytes, dict[str, str]]]) -> None:
        status, headers = 200, dict[str, str]()
        try:
            if not hmac.compare_digest(
                self.headers.get("Authorization", "").encode(), f"Bearer {self.token}".encode()
            ):
                raise _Refused(401, "unauthorized", "no right token: send Authorization: Bearer")
            kind, body, headers = work()
        except _Refused as refused:
            status, kind = refused.status, "application/json"
            body = _error_body(refused.code, refused.text)
            # What is left of the body is not read, so that nothing can follow it.
            headers = {"Connection": "close"}
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Connection" in headers:
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def _get(self) -> tuple[str, bytes, dict[str, str]]:
        if self.path != "/openapi.json":
            raise _Refused(404, "not_found", "nothing is there: GET /openapi.json says what is")
        return "application/json", json.dumps(OPENAPI).encode(), {}

    def _post(self) -> tuple[str, bytes, dict[str, str]]:
        if self.path != "/query":
            raise _Refused(404, "not_found", "nothing is there: GET /openapi.json says what is")
        sql, parameters, as_of_us = self._question()
        if not self.slots.acquire(blocking=False):
            raise _Refused(503, "busy", f"{_CONCURRENT_MAX} queries at once: ask again later")
        try:
            answer = type(self).answer_query(sql, parameters, as_of_us)
        except QueryError as error:
            raise _Refused(400, "bad_query", str(error)) from error
        except CoverageError as error:
            raise _Refused(502, "no_coverage", str(error)) from error
        except TelemetryError as error:
            raise _Refused(500, "failed", str(error)) from error
        except Exception as error:
            raise _Refused(500, "failed", f"{type(error).__name__}: {error}") from error
        finally:
            self.slots.release()
        coverage = _plain_coverage(answer.coverage)
        if ARROW in self.headers.get("Accept", ""):
            return ARROW, _stream(answer.table), {"Mesh-Coverage": json.dumps(coverage)}
        rows = [
            {name: _json_value(value) for name, value in row.items()}
            for row in answer.table.to_pylist()
        ]
        found = {"columns": answer.table.column_names, "rows": rows, "coverage": coverage}
        return "application/json", json.dumps(found, allow_nan=False).encode(), {}

    def _question(self) -> tuple[str, Parameters, int | None]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _Refused(411, "no_length", "no length: send Content-Length")
        if int(length) > _BODY_LEN_MAX:
            raise _Refused(413, "too_long", f"more than {_BODY_LEN_MAX} bytes: send less")
        try:
            question = json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise _Refused(400, "bad_json", f"{error}: send JSON") from error
        if not isinstance(question, dict) or not isinstance(question.get("sql"), str):
            raise _Refused(400, "bad_json", 'no query: send {"sql": "SELECT ..."}')
        parameters, as_of_us = question.get("params"), question.get("as_of")
        if not isinstance(parameters, list | dict | None):
            raise _Refused(400, "bad_json", "params: send a list, or an object with names")
        if not isinstance(as_of_us, int | None) or isinstance(as_of_us, bool):
            raise _Refused(400, "bad_json", "as_of: send microseconds since the epoch")
        return question["sql"], parameters, as_of_us


def _error_body(code: str, text: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": text}}).encode()


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
