"""HTTP route for heap snapshots."""

from __future__ import annotations

from collections.abc import Callable
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from mesh_telemetry._errors import HeapError
from mesh_telemetry._heap.options import HeapOptions
from mesh_telemetry._serve.routes import (
    Reply,
    Request,
    RequestError,
    Route,
    json_reply,
    known_route,
)
from mesh_telemetry._stacks.pyspy_routes import CONCURRENT_MAX, flag, handling, seconds_in

if TYPE_CHECKING:
    from mesh_telemetry._heap.snapshot import HeapSnapshot
    from mesh_telemetry._query.deadline import Cancellation

    Take = Callable[[str, HeapOptions, Cancellation], HeapSnapshot]

__all__ = ["heap_routes"]

HTML = "text/html; charset=utf-8"


def heap_routes(take: Take) -> list[Route]:
    """Return the route `POST /memray/heap`.

    Args:
        take: Takes a heap snapshot of a process until it is cancelled.
    """
    slots = BoundedSemaphore(CONCURRENT_MAX)

    def heap(request: Request) -> Reply:
        body = request.json_object()
        proc = body.get("proc")
        if not isinstance(proc, str):
            raise RequestError(
                400, "bad_json", "invalid proc: send the name of a process, such as 0.3"
            )
        seconds, has_rows = seconds_in(body, "seconds", 5.0), flag(body, "rows")
        peak, native, objects = (flag(body, name) for name in ("peak", "native", "objects"))
        # The snapshot is cancelled if the client disconnects, because it slows down the process.
        with handling(slots), request.cancellation() as cancellation:
            try:
                snapshot = take(proc, HeapOptions(seconds, peak, native, objects), cancellation)
            except HeapError as error:
                raise RequestError(502, "no_snapshot", str(error)) from error
        if has_rows:
            rows = snapshot.table.to_pylist()
            answer = {"snapshot_id": snapshot.snapshot_id, "html": snapshot.html, "rows": rows}
            return json_reply(answer)
        return Reply(HTML, snapshot.html.encode())

    return [known_route("POST", "/memray/heap", heap)]
