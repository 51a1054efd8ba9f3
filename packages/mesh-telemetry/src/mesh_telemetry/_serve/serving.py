"""The servers of a program for other programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mesh_telemetry._serve.dashboard_url import dashboard_url
from mesh_telemetry._serve.flight import FlightSqlServer
from mesh_telemetry._serve.http import HttpServer
from mesh_telemetry._serve.program_files import ServedProgramFile
from mesh_telemetry._serve.query_routes import query_routes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from mesh_telemetry._dash.dashboard import Dashboard
    from mesh_telemetry._serve.query_routes import Queries
    from mesh_telemetry._serve.routes import Route
    from mesh_telemetry._serve.scopes import Tokens

__all__ = ["Serving"]


class Serving:
    """Serves queries on the loopback interface; returned by `Telemetry.serve`. A context manager.

    Attributes:
        url: The address for HTTP; `GET /openapi.json` there describes the routes.
        flight_url: The address for Arrow Flight SQL.
        token: The read token, which requests send as `Authorization: Bearer <token>`.
        act_token: The act token, for requests that stop actors, run code or read local variables.
        dashboard_url: The address of the dashboard for a browser; contains the read token.
    """

    def __init__(
        self,
        queries: Queries,
        schemas: Mapping[str, pa.Schema],
        routes: Sequence[Route],
        dashboard: Dashboard,
        port: int,
        flight_port: int,
        tokens: Tokens,
    ) -> None:
        self.token: str = tokens.read
        self.act_token: str = tokens.act
        self._dashboard = dashboard
        every = [*query_routes(queries), *dashboard.routes(), *routes]
        self._http = HttpServer(every, tokens, port)
        try:
            self._flight = FlightSqlServer(queries, schemas, tokens, flight_port)
        except BaseException:
            self._http.close()
            raise
        self.url: str = self._http.url
        self.flight_url: str = self._flight.url
        self.dashboard_url: str = dashboard_url(self.url, self.token)
        self._note: ServedProgramFile | None = ServedProgramFile(
            os.getpid(), self.url, self.flight_url, tokens
        )

    def close(self) -> None:
        """Stop serving; later calls do nothing."""
        note, self._note = self._note, None
        if note is not None:
            note.remove()
            self._dashboard.close()
            self._http.close()
            self._flight.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
