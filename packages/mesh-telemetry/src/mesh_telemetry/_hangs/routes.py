"""The HTTP route for hangs."""

from __future__ import annotations

import dataclasses
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from mesh_core import MeshError
from mesh_telemetry._serve.routes import (
    Reply,
    Request,
    RequestError,
    Route,
    json_reply,
    known_route,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_telemetry._hangs.hang import Hang

__all__ = ["hang_routes"]

_CONCURRENT_MAX = 2


def hang_routes(why: Callable[[], list[Hang]]) -> list[Route]:
    """Return the route `GET /why`.

    Args:
        why: `Telemetry.why`.
    """
    slots = BoundedSemaphore(_CONCURRENT_MAX)

    def reply(request: Request) -> Reply:
        if not slots.acquire(blocking=False):
            text = f"too many concurrent requests (limit {_CONCURRENT_MAX}): try again later"
            raise RequestError(503, "busy", text)
        try:
            hangs = why()
        except (MeshError, TimeoutError) as error:
            raise RequestError(502, "no_coverage", str(error)) from error
        finally:
            slots.release()
        return json_reply(
            {"hangs": [{**dataclasses.asdict(hang), "text": str(hang)} for hang in hangs]}
        )

    return [known_route("GET", "/why", reply)]
