"""HTTP server on the loopback interface."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from mesh_telemetry._serve.accept_loop import AcceptLoop, connection_limiter, listener
from mesh_telemetry._serve.access import check_access
from mesh_telemetry._serve.pending_request import HEAD_LEN_MAX, PendingRequest, rejection_of
from mesh_telemetry._serve.routes import Reply, Request, RequestError, Route
from mesh_telemetry._serve.scopes import Tokens

if TYPE_CHECKING:
    from mesh_core.spi import Admission, ConnectionLimiter

__all__ = ["HttpServer"]

_BODY_LEN_MAX = 1 << 20
_SOCKET_TIMEOUT_S = 30.0
_UNAUTHENTICATED_MAX = 64


class HttpServer:
    """Serves its routes until it is closed.

    Args:
        routes: The routes.
        tokens: Requests must send one of them as `Authorization: Bearer <token>`, except to open
            routes.
        port: The port on 127.0.0.1; 0 for any free port.
        limiter: Decides which connections stay open.

    Attributes:
        routes: The routes, longest path first; the first that matches is used.

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

    def __init__(
        self,
        routes: Sequence[Route],
        tokens: Tokens,
        port: int = 0,
        limiter: ConnectionLimiter | None = None,
    ) -> None:
        # The longest path takes precedence.
        self.routes: Sequence[Route] = sorted(routes, key=lambda one: len(one.path), reverse=True)
        self._tokens = tokens
        limiter = limiter or connection_limiter(_UNAUTHENTICATED_MAX)
        self._loop = AcceptLoop(listener(port), limiter, self._pending, "mesh-telemetry-http")
        self._loop.start()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self._loop.port}"

    def close(self) -> None:
        """Stop serving."""
        self._loop.close()

    def find(self, method: str, path: str) -> Route | None:
        """Return the route of a request."""
        for route in self.routes:
            begins = route.path.endswith("*") and path.startswith(route.path[:-1])
            if route.method == method and (begins or path == route.path):
                return route
        return None

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pending(self, sock: socket.socket) -> PendingRequest:
        return PendingRequest(self._loop, sock, self.find, self._tokens, self._start)

    def _start(self, sock: socket.socket, admission: Admission, head: bytes) -> None:
        """Serve an authenticated connection in a dedicated thread."""
        thread = Thread(
            target=self._serve,
            args=(sock, admission, head),
            name="mesh-telemetry-request",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:
            # If no thread can be started, the connection is closed and the client may retry.
            sock.close()
            admission.release()

    def _serve(self, sock: socket.socket, admission: Admission, head: bytes) -> None:
        try:
            # A client that disconnects is not an error.
            with sock, suppress(OSError):
                _Handler(self, self._tokens, sock, admission, head)
                sock.shutdown(socket.SHUT_WR)
        finally:
            admission.release()


class _RequestReader(io.RawIOBase):
    """Reads from a connection after the bytes that were read before, up to a limit.

    Attributes:
        left_len: The number of bytes that may still be read before the connection is aborted.
    """

    def __init__(self, first: bytes, sock: socket.socket) -> None:
        super().__init__()
        self.left_len: int = 0
        self._first = first
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.left_len <= 0:
            raise ConnectionAbortedError("the request is too long")
        count = min(len(buffer), self.left_len, len(self._first) or len(buffer))
        if not self._first:
            count = self._sock.recv_into(buffer, count)
            self.left_len -= count
            return count
        self.left_len -= count
        buffer[:count] = self._first[:count]
        self._first = self._first[count:]
        return count


class _Handler(BaseHTTPRequestHandler):
    """Serves the requests of an authenticated connection until it ends."""

    protocol_version = "HTTP/1.1"
    server_version = "mesh-telemetry"
    sys_version = ""
    timeout = _SOCKET_TIMEOUT_S
    # A response is written in two parts, and the second must not wait for an ACK of the first.
    disable_nagle_algorithm = True

    def __init__(
        self,
        routes: HttpServer,
        tokens: Tokens,
        sock: socket.socket,
        admission: Admission,
        head: bytes,
    ) -> None:
        self._routes = routes
        self._tokens = tokens
        self._admission = admission
        self._first = head
        super().__init__(sock, sock.getsockname(), None)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Make the bytes that were read before authentication available first."""
        super().setup()
        self.rfile.close()
        self._received = _RequestReader(self._first, self.connection)
        self.rfile = io.BufferedReader(self._received)

    def handle_one_request(self) -> None:
        """Serve a request, with a limit for the size of its head."""
        self._received.left_len = HEAD_LEN_MAX
        super().handle_one_request()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because requests may be private."""

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        try:
            reply = self._reply()
        except RequestError as refused:
            # The rest of the body is not read, so no other request can follow.
            reply = rejection_of(refused)
        if reply.take_over is not None:
            self._upgrade(reply)
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

    def _upgrade(self, reply: Reply) -> None:
        """Pass the connection to the handler of an upgrade."""
        assert reply.take_over is not None, "it is url for"
        self.close_connection = True
        self.send_response(101)
        self.send_header("Upgrade", reply.kind)
        self.send_header("Connection", "Upgrade")
        self.end_headers()
        self.connection.settimeout(None)
        with suppress(OSError):
            reply.take_over(self.connection)

    def _reply(self) -> Reply:
        url = urlsplit(self.path)
        route = self._routes.find(self.command, url.path)
        scope = check_access(route, self.headers, self._tokens)
        if route is None:
            raise RequestError(404, "not_found", "not found: see GET /openapi.json for the routes")
        tail = url.path[len(route.path) - 1 :] if route.path.endswith("*") else ""
        body = self._body() if self.command == "POST" else b""
        arguments = dict(parse_qsl(url.query))
        try:
            headers = dict(self.headers.items())
            return route.work(Request(tail, arguments, headers, body, self.connection, scope))
        except RequestError:
            raise
        except Exception as error:
            raise RequestError(500, "failed", f"{type(error).__name__}: {error}") from error
        finally:
            self._admission.reserve(0)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RequestError(411, "no_length", "missing length: send Content-Length")
        if int(length) > _BODY_LEN_MAX:
            raise RequestError(
                413, "too_long", f"the body exceeds {_BODY_LEN_MAX} bytes: send less"
            )
        if not self._admission.reserve(int(length)):
            raise RequestError(503, "busy", "too many large requests at once: try again later")
        self._received.left_len += int(length)
        return self.rfile.read(int(length))

    def _send_pieces(self, pieces: Iterable[bytes]) -> None:
        # If the body fails, the missing final chunk shows the client that it is incomplete.
        with suppress(OSError, RequestError):
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
        # The client is no longer connected.
        self.close_connection = True
