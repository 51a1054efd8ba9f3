"""The HTTP route for traces, which are sent while they are generated."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._profile.profile import ProfileTrace
from mesh_telemetry._profile.rows import ProfileRows
from mesh_telemetry._serve.routes import Reply, Request, RequestError, Route, known_route

if TYPE_CHECKING:
    import pyarrow as pa

    from mesh_telemetry._profile.rows import QueryFunction

__all__ = ["TRACE", "profile_routes"]

TRACE = "application/vnd.perfetto.trace"
_CONCURRENT_MAX = 2
_DIGITS_MAX = 17


def profile_routes(query: QueryFunction, schemas: Mapping[str, pa.Schema]) -> list[Route]:
    """Return the route `GET /profile?since_us=&until_us=`, which replies with a trace."""
    slots = BoundedSemaphore(_CONCURRENT_MAX)

    def profile(request: Request) -> Reply:
        since_us, until_us = _time(request, "since_us"), _time(request, "until_us")
        if until_us is None:
            until_us = time.time_ns() // 1000
        if not slots.acquire(blocking=False):
            cause = f"too many concurrent traces (limit {_CONCURRENT_MAX}): try again later"
            raise RequestError(503, "busy", cause)
        pieces = _pieces(query, schemas, since_us, until_us, slots)
        try:
            # Errors before the first byte are reported with a status.
            next(pieces)
        except TelemetryError as error:
            raise RequestError(502, "no_coverage", str(error)) from error
        return Reply(TRACE, pieces)

    return [known_route("GET", "/profile", profile)]


def _pieces(
    query: QueryFunction,
    schemas: Mapping[str, pa.Schema],
    since_us: int | None,
    until_us: int,
    slots: BoundedSemaphore,
) -> Generator[bytes, None, None]:
    """Yield an empty part as soon as hosts have replied, then the trace."""
    try:
        rows = ProfileRows(query, schemas, since_us, until_us)
        yield b""
        try:
            yield from ProfileTrace(rows).pieces()
        except TelemetryError as error:
            # A status can no longer be sent, so the response is aborted.
            raise ConnectionAbortedError(str(error)) from error
    finally:
        slots.release()


def _time(request: Request, name: str) -> int | None:
    text = request.arguments.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX:
        raise RequestError(
            400, "bad_time", f"invalid {name}={text}: send microseconds since the epoch"
        )
    return int(text)
