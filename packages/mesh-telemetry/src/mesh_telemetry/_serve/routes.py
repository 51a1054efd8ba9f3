"""Routes of the HTTP server, with their requests and replies."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from mesh_telemetry._query.deadline import Cancellation
from mesh_telemetry._serve.disconnects import on_disconnect
from mesh_telemetry._serve.scopes import ROUTE_SCOPES, Scope

__all__ = ["JSON", "Reply", "Request", "RequestError", "Route", "json_reply", "known_route"]

JSON = "application/json"


class Request(NamedTuple):
    """A request of a client.

    `tail` is the rest of the path after a route that ends in `*`. `connection` is the connection of
    the client, and `scope` is the scope of its token.
    """

    tail: str
    arguments: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    connection: socket.socket
    scope: Scope

    def json_object(self) -> dict[str, Any]:
        """Return the body as a JSON object.

        Raises:
            RequestError: The body is not a JSON object.
        """
        try:
            value = json.loads(self.body)
        except ValueError as error:
            raise RequestError(
                400, "bad_json", f"invalid JSON ({error}): send a JSON object"
            ) from error
        if not isinstance(value, dict):
            raise RequestError(400, "bad_json", "not a JSON object: send one")
        return value

    @contextmanager
    def cancellation(self) -> Iterator[Cancellation]:
        """Yield a cancellation that is triggered when the client disconnects within the block."""
        cancellation = Cancellation()
        with on_disconnect(self.connection, cancellation.cancel):
            yield cancellation


class Reply(NamedTuple):
    """The reply to a request.

    An iterable body is sent as its parts are produced, until it ends or the client disconnects;
    then it is closed if it is a generator.
    """

    kind: str
    body: bytes | Iterable[bytes]
    headers: Mapping[str, str] = {}
    status: int = 200
    take_over: Callable[[socket.socket], object] | None = None
    """Takes over the connection until it returns; the reply has no body then."""


class Route(NamedTuple):
    """A path and its handler.

    `work` is called in the thread of the request. A path that ends in `*` matches all paths with
    this prefix; the longest match wins. `scope` is the scope that a request must have.
    """

    method: str
    path: str
    work: Callable[[Request], Reply]
    scope: Scope


class RequestError(Exception):
    """Raised to reject a request with an error response."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(status, code, text)
        self.status, self.code, self.text = status, code, text


def known_route(
    method: str, path: str, work: Callable[[Request], Reply], entry: str | None = None
) -> Route:
    """Return a route with its scope from `ROUTE_SCOPES`.

    Args:
        method: The HTTP method.
        path: The path.
        work: Answers a request.
        entry: The path in the table, if it differs.

    Raises:
        KeyError: The table has no such route.
    """
    return Route(method, path, work, ROUTE_SCOPES[method, entry or path])


def json_reply(value: Any) -> Reply:
    """Return a reply with JSON."""
    return Reply(JSON, json.dumps(value, allow_nan=False).encode())
