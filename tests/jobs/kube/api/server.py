"""The API over HTTPS, with one thread per connection."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import socket
import ssl
import sys
import threading
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.jobs.kube.api import discovery, port_forward
from tests.jobs.kube.api import request as requests
from tests.jobs.kube.api.api import Api
from tests.jobs.kube.api.faults import Cut, Faults, spoiled
from tests.jobs.kube.api.kind import Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.watch import Watch

#: Idle timeout of a connection, in seconds.
IDLE_S = 120.0


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    disable_nagle_algorithm = True
    # A response is one write, so that its client wakes up once.
    wbufsize = 1 << 16
    server: Server

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing: the tests report failures."""

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        try:
            self._answer(raw)
        except Refusal as refusal:
            self._send(refusal.code, refusal.body)
        except Cut:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        except (ConnectionError, TimeoutError, ssl.SSLError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _answer(self, raw: bytes) -> None:
        api = self.server.api
        if self.path.split("?")[0] in ("/readyz", "/livez", "/healthz"):
            self._send(200, "ok")
            return
        user = api.permissions.user(self.headers.get("Authorization", ""))
        if self.path.split("?")[0] == "/version":
            self._send(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
            return
        path = self.path.split("?")[0].rstrip("/")
        if path == "/openapi/v2":
            self._send(200, discovery.OPEN_API)
            return
        if (found := discovery.discovered(api.kinds, path)) is not None:
            self._send(200, found)
            return
        if self.path.startswith("/standin/"):
            self._send(200, self.server.control(self.path.removeprefix("/standin/")))
            return
        content_type = self.headers.get("Content-Type", "").split(";")[0]
        request = requests.read(api.kinds, self.command, self.path, _parsed(raw), content_type)
        api.permissions.check(user, request)
        fault = self.server.faults.meet(user, request)
        if request.subresource == "portforward":
            # Newer servers require the permission to create, although a websocket begins with a
            # GET.
            api.permissions.check(user, dataclasses.replace(request, verb="create"))
            port_forward.serve(self, api.answer(dataclasses.replace(request, subresource=""))[1])
        elif request.verb == "watch":
            self._stream(spoiled(iter(Watch(api, request, self.server.ended)), fault))
        else:
            answer = api.answer(request)
            self.server.faults.done(user, request)
            self._send(*answer)

    def _send(self, code: int, body: Object | str | bytes) -> None:
        match body:
            case bytes():
                raw, content_type = body, "application/octet-stream"
            case str():
                raw, content_type = body.encode(), "text/plain"
            case _:
                raw, content_type = json.dumps(body).encode(), "application/json"
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, events: Iterable[Object]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for event in events:
            raw = json.dumps(event).encode() + b"\n"
            self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


def _parsed(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError as error:
        raise Refusal(400, f"the body of the request is no JSON: {error}") from error


class Server(http.server.ThreadingHTTPServer):
    """Listens on the loopback interface of this machine."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, api: Api, certificate: Path, key: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.api = api
        self.faults = Faults()
        self.ended = threading.Event()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate, key)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; its thread does the TLS handshake, so slow clients do not block."""
        connection, address = super().get_request()
        connection.settimeout(IDLE_S)
        return self._tls.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        ), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that disconnected; print others to standard error."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError, ssl.SSLError)):
            super().handle_error(request, client_address)

    def control(self, command: str) -> Object:
        """Execute a control command of a test that no real server has."""
        word, _, asked = command.partition("?")
        query = dict(urllib.parse.parse_qsl(asked))
        match word:
            case "forget-history":
                self.api.store.forget_history()
            case "fail":
                self.faults.add(query)
            case "repair":
                self.faults.repair()
            case "held":
                return {"held": sum(self.faults.held.values())}
            case _:
                raise Refusal(404, f"nobody knows how to {word}")
        return {}
