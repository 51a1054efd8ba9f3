"""HTTP routes for dumps of stacks and flame graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any

from mesh_telemetry._errors import PySpyError, QueryError, TelemetryError
from mesh_telemetry._serve.routes import (
    Reply,
    Request,
    RequestError,
    Route,
    json_reply,
    known_route,
)
from mesh_telemetry._stacks.flame_graph import FlameOptions

if TYPE_CHECKING:
    from mesh_telemetry._query.deadline import Cancellation
    from mesh_telemetry._stacks.dump import StackDump
    from mesh_telemetry._stacks.flame_graph import FlameGraph

    Record = Callable[[str, FlameOptions, Cancellation], FlameGraph]

__all__ = ["CONCURRENT_MAX", "flag", "handling", "pyspy_routes", "seconds_in"]

SVG = "image/svg+xml"
#: The number of requests of one kind that are served at a time.
CONCURRENT_MAX = 4
_TIMEOUT_S_MAX = 300.0
_RATE = 100


def pyspy_routes(take: Callable[..., StackDump], record: Record) -> list[Route]:
    """Return the routes `POST /pyspy/dump` and `POST /pyspy/flame`.

    Args:
        take: `Telemetry.pyspy_dump`.
        record: Samples the stacks of a process until it is cancelled.
    """
    slots = BoundedSemaphore(CONCURRENT_MAX)

    def dump(request: Request) -> Reply:
        body = request.json_object()
        where = body.get("where")
        if not (where is None or isinstance(where, str) or _is_names(where)):
            text = "invalid where: send a condition over procs, or a list of names"
            raise RequestError(400, "bad_json", text)
        native, has_locals = flag(body, "native"), flag(body, "locals")
        has_subprocesses, timeout = flag(body, "subprocesses"), seconds_in(body, "timeout", 10.0)
        with handling(slots):
            made = take(
                where,
                native=native,
                locals=has_locals,
                subprocesses=has_subprocesses,
                timeout=timeout,
            )
        return json_reply(dataclasses.asdict(made) | {"is_full": made.is_full})

    def flame(request: Request) -> Reply:
        body = request.json_object()
        proc = body.get("proc")
        if not isinstance(proc, str):
            raise RequestError(
                400, "bad_json", "invalid proc: send the name of a process, such as 0.3"
            )
        seconds, has_rows = seconds_in(body, "seconds", 5.0), flag(body, "rows")
        native, idle = flag(body, "native"), flag(body, "idle")
        # The recording is cancelled if the client disconnects, because it takes time and few
        # recordings can run at once.
        with handling(slots), request.cancellation() as cancellation:
            options = FlameOptions(seconds, _RATE, native, idle)
            graph = record(proc, options, cancellation)
        if has_rows:
            return json_reply({"svg": graph.svg, "rows": graph.table.to_pylist()})
        return Reply(SVG, graph.svg.encode())

    return [known_route("POST", "/pyspy/dump", dump), known_route("POST", "/pyspy/flame", flame)]


@contextmanager
def handling(slots: BoundedSemaphore) -> Iterator[None]:
    """Limit concurrency, and convert errors to responses."""
    if not slots.acquire(blocking=False):
        text = f"too many concurrent requests (limit {CONCURRENT_MAX}): try again later"
        raise RequestError(503, "busy", text)
    try:
        yield
    except (QueryError, ValueError) as error:
        raise RequestError(400, "bad_query", str(error)) from error
    except PySpyError as error:
        raise RequestError(502, "no_stacks", str(error)) from error
    except TelemetryError as error:
        raise RequestError(500, "failed", str(error)) from error
    finally:
        slots.release()


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def flag(body: dict[str, Any], name: str) -> bool:
    """Return a truth value of a request, by default False."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(400, "bad_json", f"invalid {name}: send true or false")
    return value


def seconds_in(body: dict[str, Any], name: str, otherwise: float) -> float:
    """Return a duration of a request, or a default."""
    value = body.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(400, "bad_json", f"invalid {name}: send a number of seconds")
    if not 0 < value <= _TIMEOUT_S_MAX:
        text = f"invalid {name}: send a value above 0 and up to {_TIMEOUT_S_MAX:g}"
        raise RequestError(400, "bad_json", text)
    return float(value)
