"""The HTTP route that Prometheus scrapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_core import MeshError
from mesh_telemetry._prometheus.exposition import (
    OPENMETRICS,
    TEXT,
    exposition,
    is_openmetrics_accepted,
)
from mesh_telemetry._serve.routes import Reply, Request, RequestError, Route, known_route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_telemetry._prometheus.job_metrics import JobMetrics

__all__ = ["prometheus_routes"]

# Prometheus gives up after 10 s by default. A host that does not respond delays every scrape.
_REPLY_S, _REPLY_S_MIN = 5.0, 0.5
_SCRAPE_TIMEOUT = "X-Prometheus-Scrape-Timeout-Seconds"


def prometheus_routes(metrics: JobMetrics) -> list[Route]:
    """Return the route `GET /metrics`."""

    def reply(request: Request) -> Reply:
        try:
            families = metrics.scrape(_limit_s(request.headers))
        except (MeshError, TimeoutError) as error:
            raise RequestError(502, "no_coverage", str(error)) from error
        is_openmetrics = is_openmetrics_accepted(_header(request.headers, "Accept"))
        body = exposition(families, is_openmetrics=is_openmetrics)
        return Reply(OPENMETRICS if is_openmetrics else TEXT, body, {"Cache-Control": "no-store"})

    return [known_route("GET", "/metrics", reply)]


def _limit_s(headers: Mapping[str, str]) -> float:
    """Return the time that hosts have to reply, which leaves time for the rest of a scrape."""
    try:
        scrape_s = float(_header(headers, _SCRAPE_TIMEOUT))
    except ValueError:
        return _REPLY_S
    return min(max(scrape_s / 2, _REPLY_S_MIN), _REPLY_S)


def _header(headers: Mapping[str, str], wanted: str) -> str:
    return next((value for name, value in headers.items() if name.lower() == wanted.lower()), "")
