"""HTTP routes for debugging: a stream to a session, commands, and pausing at failures."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

from mesh_telemetry._debug.debugging import DebugConnection, Debugging
from mesh_telemetry._errors import DebugError, TelemetryError
from mesh_telemetry._serve.routes import (
    Reply,
    Request,
    RequestError,
    Route,
    json_reply,
    known_route,
)

__all__ = ["STREAM", "debug_routes"]

#: The protocol of an upgraded connection: the lines of `_debug.lines`.
STREAM = "mesh-debug"

_PIECE_LEN = 1 << 16
_TIMEOUT_S_MAX = 600.0
_JOIN_S = 60.0


def debug_routes(
    debugging: Callable[[], Debugging], on_failure: Callable[..., None]
) -> list[Route]:
    """Return the routes.

    Args:
        debugging: Returns the access to the sessions.
        on_failure: `Telemetry.debug_on_failure`.
    """

    def attach(request: Request) -> Reply:
        body = request.json_object()
        greeting = {
            "how": "dap" if body.get("how") == "dap" else "attach",
            "client": str(body.get("client") or "somebody"),
            "is_kept": bool(body.get("is_kept")),
        }
        try:
            connection = debugging().open(request.tail, greeting)
        except DebugError as error:
            raise RequestError(409, "no_session", str(error)) from error
        return Reply(STREAM, b"", take_over=lambda client: _copy_from_client(client, connection))

    def run(request: Request) -> Reply:
        body = request.json_object()
        command, timeout_s = body.get("command"), body.get("timeout_s", 30.0)
        if not isinstance(command, str) or not command or "\n" in command:
            raise RequestError(400, "bad_json", "command is not one line: send one pdb command")
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _TIMEOUT_S_MAX:
            text = f"invalid timeout_s: send seconds above 0 and up to {_TIMEOUT_S_MAX:g}"
            raise RequestError(400, "bad_json", text)
        return _results_reply(debugging().run(_sessions(body), command, timeout_s))

    def release(request: Request) -> Reply:
        return _results_reply(debugging().release(_sessions(request.json_object())))

    def failures(request: Request) -> Reply:
        body = request.json_object()
        mesh, limit_s, is_on = body.get("mesh"), body.get("limit_s", 600.0), body.get("is_on", True)
        if not isinstance(mesh, str | None) or not isinstance(limit_s, int | float):
            raise RequestError(400, "bad_json", "send the name of a mesh, and limit_s in seconds")
        try:
            on_failure(mesh, limit=limit_s, is_on=bool(is_on))
        except (TelemetryError, ValueError) as error:
            raise RequestError(400, "failed", str(error)) from error
        return json_reply({})

    return [
        known_route("POST", "/debug/attach/*", attach),
        known_route("POST", "/debug/run", run),
        known_route("POST", "/debug/continue", release),
        known_route("POST", "/debug/on-failure", failures),
    ]


def _sessions(body: dict[str, Any]) -> list[str]:
    sessions = body.get("sessions")
    if not isinstance(sessions, list) or not all(isinstance(one, str) for one in sessions):
        raise RequestError(400, "bad_json", "invalid sessions: send a list of session ids")
    return sessions


def _results_reply(body: list[tuple[str, str, str | None]]) -> Reply:
    rows = [{"id": session, "text": text, "error": error} for session, text, error in body]
    return json_reply({"sessions": rows})


def _copy_from_client(client: socket.socket, connection: DebugConnection) -> None:
    """Relay bytes in both directions until one side ends."""
    back = Thread(
        target=_copy_to_client, args=(client, connection), name="mesh-telemetry-debug", daemon=True
    )
    back.start()
    with suppress(OSError, DebugError):
        while piece := client.recv(_PIECE_LEN):
            connection.send(piece)
    connection.close()
    back.join(_JOIN_S)


def _copy_to_client(client: socket.socket, connection: DebugConnection) -> None:
    with suppress(OSError):
        while (piece := connection.receive()) is not None:
            client.sendall(piece)
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
