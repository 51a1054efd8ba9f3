"""The HTTP route for hangs and slow ranks."""

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
    from mesh_telemetry._hangs.slow_ranks import SlowRank

__all__ = ["hang_routes"]

_CONCURRENT_MAX = 2


def hang_routes(
    why: Callable[[], list[Hang]], slow_ranks: Callable[[], list[SlowRank]]
) -> list[Route]:
    """Return the route `GET /why`.

    Args:
        why: `Telemetry.why`.
        slow_ranks: `Telemetry.slow_ranks`.
    """
    slots = BoundedSemaphore(_CONCURRENT_MAX)

    def reply(request: Request) -> Reply:
        if not slots.acquire(blocking=False):
            text = f"too many concurrent requests (limit {_CONCURRENT_MAX}): try again later"
            raise RequestError(503, "busy", text)
        try:
            hangs, slow = why(), slow_ranks()
        except (MeshError, TimeoutError) as error:
            raise RequestError(502, "no_coverage", str(error)) from error
        finally:
            slots.release()
        return json_reply(
            {
                "hangs": [{**dataclasses.asdict(hang), "text": str(hang)} for hang in hangs],
                "slow_ranks": [{**one._asdict(), "text": str(one)} for one in slow],
            }
        )

    return [known_route("GET", "/why", reply)]
