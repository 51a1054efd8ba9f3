"""Answers over HTTP, for what does not speak Python: on loopback, and with a token."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qsl, urlsplit

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._serve.access import check_access
from mesh_telemetry._serve.routes import JSON, Refused, Reply, Request, Route
from mesh_telemetry._serve.scopes import Tokens

__all__ = ["HttpServer"]

_BODY_LEN_MAX = 1 << 20
_SOCKET_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.05


class HttpServer:
    """Answers what its routes have, until it is closed.

    Args:
        routes: What there is to be asked.
        tokens: One of them is required as `Authorization: Bearer <token>`, except by open routes.
        port: Where it listens on 127.0.0.1; 0 for any free port.

    Attributes:
        routes: The same, the first that fits is the one.

    Raises:
        TelemetryError: The port is taken.

    Example:
        >>> from mesh_telemetry._serve.routes import Route, json_reply
        >>> from mesh_telemetry._serve.scopes import Scope
        >>> hello = Route("GET", "/hello", lambda _: json_reply({"hello": "world"}), Scope.READ)
        >>> with HttpServer([hello], Tokens.random()) as server:
        ...     server.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(self, routes: Sequence[Route], tokens: Tokens, port: int = 0) -> None:
        class Handler(_Handler):
            pass

        # The longest first.
        self.routes: Sequence[Route] = sorted(routes, key=lambda one: len(one.path), reverse=True)
        Handler.routes = self.routes
        Handler.tokens = tokens
        try:
            self._server = _Server(("127.0.0.1", port), Handler)
        except OSError as error:
            raise TelemetryError(f"port {port} ({error}): choose another, or 0 for any") from error
        self._server.daemon_threads = True
        self._thread = Thread(
            target=self._server.serve_forever,
            args=(_POLL_S,),
            name="mesh-telemetry-http",
            daemon=True,
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._thread.join(_STOP_TIMEOUT_S)
        self._server.server_close()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of callers that have hung up."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    routes: Sequence[Route]
    tokens: Tokens
    protocol_version = "HTTP/1.1"
    server_version = "mesh-telemetry"
    sys_version = ""
    timeout = _SOCKET_TIMEOUT_S
    # An answer is written in two parts, of which the second must not wait for the first.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: what is asked may be private."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        try:
            reply = self._reply()
        except Refused as refused:
            # What is left of the body is not read, so that nothing can follow it.
            reply = Reply(JSON, _error(refused), {"Connection": "close"}, refused.status)
        if reply.take_over is not None:
            self._hand_over(reply)
            return
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if "Connection" in reply.headers:
            self.close_connection = True
        if isinstance(reply.body, bytes):
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)
        else:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._send_pieces(reply.body)

    def _hand_over(self, reply: Reply) -> None:
        """Gives the connection away; nothing else follows on it."""
        assert reply.take_over is not None, "it is asked for"
        self.close_connection = True
        self.send_response(101)
        self.send_header("Upgrade", reply.kind)
        self.send_header("Connection", "Upgrade")
        self.end_headers()
        self.connection.settimeout(None)
        with suppress(OSError):
            reply.take_over(self.connection)

    def _reply(self) -> Reply:
        asked = urlsplit(self.path)
        route = self._route(asked.path)
        scope = check_access(route, self.headers, self.tokens)  # type: ignore[arg-type]
        if route is None:
            raise Refused(404, "not_found", "nothing is there: GET /openapi.json says what is")
        tail = asked.path[len(route.path) - 1 :] if route.path.endswith("*") else ""
        body = self._body() if self.command == "POST" else b""
        arguments = dict(parse_qsl(asked.query))
        try:
            headers = dict(self.headers.items())
            return route.work(Request(tail, arguments, headers, body, self.connection, scope))
        except Refused:
            raise
        except Exception as error:
            raise Refused(500, "failed", f"{type(error).__name__}: {error}") from error

    def _route(self, path: str) -> Route | None:
        for route in self.routes:
            begins = route.path.endswith("*") and path.startswith(route.path[:-1])
            if route.method == self.command and (begins or path == route.path):
                return route
        return None

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Refused(411, "no_length", "no length: send Content-Length")
        if int(length) > _BODY_LEN_MAX:
            raise Refused(413, "too_long", f"more than {_BODY_LEN_MAX} bytes: send less")
        return self.rfile.read(int(length))

    def _send_pieces(self, pieces: Iterable[bytes]) -> None:
        # Who reads it sees that it has no end, where that could not be made.
        with suppress(OSError, Refused):
            try:
                for piece in pieces:
                    if piece:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
                return
            finally:
                close = getattr(pieces, "close", None)
                if close is not None:
                    close()
        # Nobody listens any more.
        self.close_connection = True


def _error(refused: Refused) -> bytes:
    return json.dumps({"error": {"code": refused.code, "message": refused.text}}).encode()
