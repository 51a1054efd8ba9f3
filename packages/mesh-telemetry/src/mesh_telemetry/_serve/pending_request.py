"""An HTTP connection until its first request is authenticated or served."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, HTTPMessage, parse_headers
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from mesh_telemetry._serve.accept_loop import READ, WRITE, received
from mesh_telemetry._serve.access import check_access
from mesh_telemetry._serve.routes import JSON, Reply, Request, RequestError, Route
from mesh_telemetry._serve.scopes import Scope

if TYPE_CHECKING:
    from mesh_core.spi import Admission
    from mesh_telemetry._serve.accept_loop import AcceptLoop
    from mesh_telemetry._serve.scopes import Tokens

__all__ = ["HEAD_LEN_MAX", "PendingRequest", "rejection_of"]

#: Limit for the request line and the headers, in bytes.
HEAD_LEN_MAX = 16 << 10
_END = b"\r\n\r\n"
# Bytes of a rejected body that are read and discarded, so that the peer can read the response.
_DRAIN_LEN_MAX = 2 << 20
_PIECE_LEN = 1 << 16

#: Takes over the connection with the bytes that were read from it, and releases the admission.
Authenticated = Callable[[socket.socket, "Admission", bytes], object]


class PendingRequest:
    """Reads the head of a request without a thread, and serves requests that need no token.

    Args:
        loop: Polls the connection.
        sock: The connection, which is nonblocking.
        find: Returns the route of a method and a path.
        tokens: The tokens of the server.
        authenticated: Takes over the connection if its token is valid.

    Attributes:
        sock: The connection.
    """

    def __init__(
        self,
        loop: AcceptLoop,
        sock: socket.socket,
        find: Callable[[str, str], Route | None],
        tokens: Tokens,
        authenticated: Authenticated,
    ) -> None:
        self._loop = loop
        self.sock: socket.socket = sock
        self._find = find
        self._tokens = tokens
        self._authenticated = authenticated
        self._admission: Admission | None = None
        self._head = b""
        self._reply = memoryview(b"")
        self._drain_len = 0

    def start(self, admission: Admission) -> None:
        """Start reading the head."""
        self._admission = admission
        self._loop.watch(self.sock, READ, self._read)
        # Under load, the head has usually arrived while the connection was in the backlog.
        self._read(READ)

    def close(self) -> None:
        """Close the connection."""
        self._loop.leave(self)
        self._loop.forget(self.sock)
        self.sock.close()
        if self._admission is not None:
            self._admission.release()

    def _read(self, _events: int) -> None:
        piece = self._received(HEAD_LEN_MAX - len(self._head))
        if piece is None:
            return
        self._head += piece
        if _END in self._head:
            self._decide()
        elif len(self._head) >= HEAD_LEN_MAX:
            text = f"the request head exceeds {HEAD_LEN_MAX} bytes: send less"
            self._send(rejection_of(RequestError(431, "head_too_long", text)))

    def _received(self, length_max: int) -> bytes | None:
        """Return the bytes that have arrived; None if there are none or the peer has closed."""
        piece = received(self.sock, length_max)
        if piece == b"":
            self.close()
            return None
        return piece

    def _decide(self) -> None:
        try:
            reply = self._route()
        except RequestError as refused:
            reply = rejection_of(refused)
        except Exception as error:
            reply = rejection_of(RequestError(500, "failed", f"{type(error).__name__}: {error}"))
        if reply is not None:
            self._send(reply)

    def _route(self) -> Reply | None:
        """Return the response; None if another thread took over the connection."""
        method, target, headers = _parsed(self._head)
        url = urlsplit(target)
        route = self._find(method, url.path)
        scope = check_access(route, headers, self._tokens)
        if scope is Scope.OPEN:
            assert route is not None, "a path that does not exist requires a token"
            arguments, named = dict(parse_qsl(url.query)), dict(headers.items())
            return route.work(Request("", arguments, named, b"", self.sock, scope))
        admission = self._admission
        assert admission is not None, "it was started"
        if not admission.authenticate():
            raise RequestError(
                503, "busy", "too many authenticated connections are open: close one"
            )
        self._loop.leave(self)
        self._loop.forget(self.sock)
        self.sock.setblocking(True)
        self._authenticated(self.sock, admission, self._head)
        return None

    def _send(self, reply: Reply) -> None:
        """Send a response; no further request is read from the connection."""
        assert isinstance(reply.body, bytes), "replies without a token are not streamed"
        self._reply = memoryview(_encoded(reply, reply.body))
        self._loop.change(self.sock, WRITE, self._write)
        self._write(WRITE)

    def _write(self, _events: int) -> None:
        try:
            sent = self.sock.send(self._reply)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self._reply = self._reply[sent:]
        if not self._reply:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)
            self._loop.change(self.sock, READ, self._drain)

    def _drain(self, _events: int) -> None:
        # Closing a connection with unread bytes resets it, and the response may be lost.
        piece = self._received(_PIECE_LEN)
        if piece is not None:
            self._drain_len += len(piece)
            if self._drain_len > _DRAIN_LEN_MAX:
                self.close()


def rejection_of(refused: RequestError) -> Reply:
    """Return the response to a rejected request, after which its connection is closed."""
    body = json.dumps({"error": {"code": refused.code, "message": refused.text}}).encode()
    return Reply(JSON, body, {"Connection": "close"}, refused.status)


def _parsed(head: bytes) -> tuple[str, str, HTTPMessage]:
    """Return method, target and headers.

    Raises:
        RequestError: The bytes are not the head of an HTTP request.
    """
    stream = io.BytesIO(head)
    words = stream.readline().decode("iso-8859-1").split()
    try:
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise ValueError("no request line")
        urlsplit(words[1])
        return words[0], words[1], parse_headers(stream)
    except (ValueError, HTTPException) as error:
        raise RequestError(400, "bad_request", f"{error}: send HTTP/1.1") from error


def _encoded(reply: Reply, body: bytes) -> bytes:
    reason, _ = BaseHTTPRequestHandler.responses.get(reply.status, ("", ""))
    headers = {"Content-Type": reply.kind, **reply.headers, "Connection": "close"}
    if reply.status != 304:
        headers["Content-Length"] = str(len(body))
    lines = [f"HTTP/1.1 {int(reply.status)} {reason}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
