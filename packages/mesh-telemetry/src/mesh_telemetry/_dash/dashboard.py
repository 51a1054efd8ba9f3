"""The dashboard: its files and its topics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from mesh_core.case import ProgramCases
from mesh_telemetry._dash.files import file_routes
from mesh_telemetry._dash.queries import TOPICS, PageQueries
from mesh_telemetry._dash.topic_streams import TopicStreams
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._serve.routes import JSON, Reply, Request, RequestError, Route, known_route

if TYPE_CHECKING:
    from mesh_telemetry._dash.queries import QueryFunction
    from mesh_telemetry._query.coverage import QueryResult
    from mesh_telemetry._rows.schemas import TableDoc

__all__ = ["Dashboard", "QueryRunner"]

#: Seconds after which hosts that have not replied are left out.
_QUERY_TIMEOUT_S = 3.0
#: The same until the first reply, while hosts may still be loading the query engine.
_FIRST_QUERY_TIMEOUT_S = 15.0


class QueryRunner:
    """Runs the queries of a dashboard with a time limit."""

    def __init__(self, query: Callable[..., QueryResult]) -> None:
        self._query = query
        self._has_replied = False

    def __call__(self, sql: str, params: Sequence[object]) -> QueryResult:
        """Run one query, leaving out late hosts."""
        timeout_s = _QUERY_TIMEOUT_S if self._has_replied else _FIRST_QUERY_TIMEOUT_S
        result = self._query(sql, params, timeout=timeout_s)
        self._has_replied = True
        return result


class Dashboard:
    """Serves the dashboard to browsers.

    Args:
        query: Runs an SQL query; called in several threads.
        docs: The existing tables.
        streams: Repeats queries for open pages.
        program: The command line of the program, which the pages show.
    """

    def __init__(
        self,
        query: QueryFunction,
        docs: Mapping[str, TableDoc],
        streams: TopicStreams | None = None,
        program: str = "",
    ) -> None:
        self._query = query
        self._docs = docs
        self._cases = ProgramCases()
        self._program = program
        self.streams: TopicStreams = streams or TopicStreams()

    def routes(self) -> list[Route]:
        """Return the routes of the files, of `GET /topics/<name>` and of `GET /live/<name>`."""
        return [
            *file_routes(),
            known_route("GET", "/topics/*", self._once),
            known_route("GET", "/live/*", self._stream),
        ]

    def close(self) -> None:
        """End all streams; later calls do nothing."""
        self.streams.close()

    def _once(self, request: Request) -> Reply:
        return Reply(
            JSON, self._reply(request.tail, request.arguments), {"Cache-Control": "no-store"}
        )

    def _stream(self, request: Request) -> Reply:
        name, arguments = request.tail, dict(request.arguments)
        if name not in TOPICS:
            raise RequestError(404, "not_found", f"unknown topic {name!r}: use {', '.join(TOPICS)}")
        if self.streams.is_full:
            raise RequestError(503, "busy", "too many dashboard pages are open: close one")
        key = f"{name}?{urlencode(sorted(arguments.items()))}"
        pieces = self.streams.stream(key, lambda: self._reply_or_error(name, arguments))
        return Reply("text/event-stream", pieces, {"Cache-Control": "no-store"})

    def _reply_or_error(self, name: str, arguments: Mapping[str, str]) -> bytes:
        """Return a reply or an error message, so that a stream survives temporary errors."""
        try:
            return self._reply(name, arguments)
        except RequestError as refused:
            return json.dumps({"error": refused.text}).encode()
        except Exception as error:
            return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()

    def _reply(self, name: str, arguments: Mapping[str, str]) -> bytes:
        topic = TOPICS.get(name)
        if topic is None:
            raise RequestError(404, "not_found", f"unknown topic {name!r}: use {', '.join(TOPICS)}")
        queries = PageQueries(self._query, self._docs, self._cases, self._program)
        try:
            value = topic(queries, arguments)
        except TelemetryError as error:
            raise RequestError(502, "failed", str(error)) from error
        reply = {"value": value, "coverage": queries.coverage()}
        return json.dumps(reply, allow_nan=False, separators=(",", ":")).encode()
