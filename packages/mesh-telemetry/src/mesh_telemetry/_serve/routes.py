"""What can be asked of the HTTP server: each kind of question, and who answers it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from mesh_telemetry._query.deadline import Cancellation
from mesh_telemetry._serve.hanging_up import told_of_hanging_up
from mesh_telemetry._serve.scopes import ROUTE_SCOPES, Scope

__all__ = ["JSON", "Refused", "Reply", "Request", "Route", "json_reply", "known_route"]

JSON = "application/json"


class Request(NamedTuple):
    """What somebody asks.

    `tail` is what follows the path of the route, where that ends in `*`. `connection` is theirs,
    and `scope` is what their token permits.
    """

    tail: str
    arguments: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    connection: socket.socket
    scope: Scope

    def json_object(self) -> dict[str, Any]:
        """Gives the body, which has to be a JSON object.

        Raises:
            Refused: It is not.
        """
        try:
            value = json.loads(self.body)
        except ValueError as error:
            raise Refused(400, "bad_json", f"{error}: send JSON") from error
        if not isinstance(value, dict):
            raise Refused(400, "bad_json", "no object: send JSON in braces")
        return value

    @contextmanager
    def cancellation(self) -> Iterator[Cancellation]:
        """Gives what is cancelled when who asks hangs up within the block."""
        cancellation = Cancellation()
        with told_of_hanging_up(self.connection, cancellation.cancel):
            yield cancellation


class Reply(NamedTuple):
    """What is answered.

    A body in pieces is sent as they come, until the iterable ends or nobody listens; then it is
    closed if it is a generator.
    """

    kind: str
    body: bytes | Iterable[bytes]
    headers: Mapping[str, str] = {}
    status: int = 200
    take_over: Callable[[socket.socket], object] | None = None
    """Has the connection from here on, until it returns; there is no body then."""


class Route(NamedTuple):
    """A path, and who answers there.

    `work` is called in a thread of the request. A path that ends in `*` is for all that begin so;
    the longest wins. `scope` is what a request must be permitted.
    """

    method: str
    path: str
    work: Callable[[Request], Reply]
    scope: Scope


class Refused(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(status, code, text)
        self.status, self.code, self.text = status, code, text


def known_route(
    method: str, path: str, work: Callable[[Request], Reply], entry: str | None = None
) -> Route:
    """Return a route with its scope of `ROUTE_SCOPES`.

    Args:
        method: The method of HTTP.
        path: The path.
        work: Answers a request.
        entry: The path that the table has, where it is another one.

    Raises:
        KeyError: The table has no such route.
    """
    return Route(method, path, work, ROUTE_SCOPES[method, entry or path])


def json_reply(value: Any) -> Reply:
    """Answers with JSON."""
    return Reply(JSON, json.dumps(value, allow_nan=False).encode())
