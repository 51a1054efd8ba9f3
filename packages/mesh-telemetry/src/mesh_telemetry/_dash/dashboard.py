"""The dashboard: its files and its topics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from mesh_telemetry._dash.files import file_routes
from mesh_telemetry._dash.live import Live
from mesh_telemetry._dash.queries import TOPICS, PageQueries
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._serve.routes import JSON, Reply, Request, RequestError, Route, known_route

if TYPE_CHECKING:
    from mesh_telemetry._dash.queries import QueryFunction
    from mesh_telemetry._query.coverage import Answer
    from mesh_telemetry._rows.schemas import TableDoc

__all__ = ["Dashboard", "QueryRunner"]

#: Seconds after which hosts that have not answered are left out.
_LOOK_S = 3.0
#: The same until the first answer, while hosts may still be loading the query engine.
_FIRST_LOOK_S = 15.0


class QueryRunner:
    """Runs the queries of a dashboard with a time limit."""

    def __init__(self, query: Callable[..., Answer]) -> None:
        self._query = query
        self._has_answered = False

    def __call__(self, sql: str, params: Sequence[object]) -> Answer:
        """Run one query, leaving out late hosts."""
        timeout_s = _LOOK_S if self._has_answered else _FIRST_LOOK_S
        answer = self._query(sql, params, timeout=timeout_s)
        self._has_answered = True
        return answer


class Dashboard:
    """Serves the dashboard to browsers.

    Args:
        query: Runs an SQL query; called in several threads.
        docs: The existing tables.
        live: Repeats queries for open pages.
    """

    def __init__(
        self, query: QueryFunction, docs: Mapping[str, TableDoc], live: Live | None = None
    ) -> None:
        self._query = query
        self._docs = docs
        self.live: Live = live or Live()

    def routes(self) -> list[Route]:
        """Return the routes of the files, of `GET /topics/<name>` and of `GET /live/<name>`."""
        return [
            *file_routes(),
            known_route("GET", "/topics/*", self._once),
            known_route("GET", "/live/*", self._stream),
        ]

    def close(self) -> None:
        """End all streams; later calls do nothing."""
        self.live.close()

    def _once(self, request: Request) -> Reply:
        return Reply(
            JSON, self._answer(request.tail, request.arguments), {"Cache-Control": "no-store"}
        )

    def _stream(self, request: Request) -> Reply:
        name, arguments = request.tail, dict(request.arguments)
        if name not in TOPICS:
            raise RequestError(404, "not_found", f"unknown topic {name!r}: use {', '.join(TOPICS)}")
        if self.live.is_full:
            raise RequestError(503, "busy", "too many dashboard pages are open: close one")
        key = f"{name}?{urlencode(sorted(arguments.items()))}"
        pieces = self.live.stream(key, lambda: self._told(name, arguments))
        return Reply("text/event-stream", pieces, {"Cache-Control": "no-store"})

    def _told(self, name: str, arguments: Mapping[str, str]) -> bytes:
        """Return an answer or an error message, so that a stream survives temporary errors."""
        try:
            return self._answer(name, arguments)
        except RequestError as refused:
            return json.dumps({"error": refused.text}).encode()
        except Exception as error:
            return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()

    def _answer(self, name: str, arguments: Mapping[str, str]) -> bytes:
        topic = TOPICS.get(name)
        if topic is None:
            raise RequestError(404, "not_found", f"unknown topic {name!r}: use {', '.join(TOPICS)}")
        queries = PageQueries(self._query, self._docs)
        try:
            value = topic(queries, arguments)
        except TelemetryError as error:
            raise RequestError(502, "failed", str(error)) from error
        said = {"value": value, "coverage": queries.coverage()}
        return json.dumps(said, allow_nan=False, separators=(",", ":")).encode()
