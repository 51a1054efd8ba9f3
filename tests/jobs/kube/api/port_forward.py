"""Port forwarding through the server: a websocket whose frames begin with a channel number."""

from __future__ import annotations

import base64
import hashlib
import http.server
import socket
import struct
import threading
import urllib.parse
from typing import Any

from tests.jobs.kube.api.refusal import Refusal

PROTOCOL = "v4.channel.k8s.io"

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10
_READ_LEN = 65536


def serve(handler: http.server.BaseHTTPRequestHandler, pod: Any) -> None:
    """Connect a client to one port of a pod until either end closes the connection.

    Raises:
        Refusal: The request is not supported, or nothing listens on the port.
    """
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(handler.path).query)
    key, offered = (
        handler.headers.get("Sec-WebSocket-Key"),
        handler.headers.get_all("Sec-WebSocket-Protocol", []),
    )
    if not key or PROTOCOL not in ",".join(offered) or len(query.get("ports", [])) != 1:
        raise Refusal(400, "unable to upgrade: one port by a websocket is all that is served")
    port = int(query["ports"][0])
    _upgrade(handler, key)
    wire = _Wire(handler)
    for channel in (0, 1):
        wire.send(bytes([channel]) + struct.pack("<H", port))
    try:
        there = socket.create_connection((pod["status"]["podIP"], port), 5.0)
    except (OSError, KeyError) as error:
        wire.send(b"\x01" + f"error forwarding port {port}: {error}".encode())
        wire.close()
        return
    there.settimeout(None)
    back = threading.Thread(target=_back, args=[there, wire], daemon=True)
    back.start()
    while (data := wire.receive()) is not None:
        if data[:1] == b"\x00":
            there.sendall(data[1:])
    there.shutdown(socket.SHUT_RDWR)
    back.join()
    there.close()
    handler.close_connection = True


def _upgrade(handler: http.server.BaseHTTPRequestHandler, key: str) -> None:
    accept = base64.b64encode(hashlib.sha1((key + _MAGIC).encode()).digest()).decode()
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    handler.send_header("Sec-WebSocket-Accept", accept)
    handler.send_header("Sec-WebSocket-Protocol", PROTOCOL)
    handler.end_headers()
    handler.wfile.flush()


def _back(there: socket.socket, wire: _Wire) -> None:
    try:
        while data := there.recv(_READ_LEN):
            wire.send(b"\x00" + data)
    except OSError:
        pass
    wire.close()


class _Wire:
    """The server's end of a websocket."""

    def __init__(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self._in = handler.rfile
        self._out = handler.wfile
        self._connection = handler.connection
        self._lock = threading.Lock()

    def send(self, data: bytes, opcode: int = _BINARY) -> None:
        size = len(data)
        if size < 126:
            head = bytes([0x80 | opcode, size])
        elif size < 1 << 16:
            head = bytes([0x80 | opcode, 126]) + struct.pack(">H", size)
        else:
            head = bytes([0x80 | opcode, 127]) + struct.pack(">Q", size)
        with self._lock:
            self._out.write(head + data)
            self._out.flush()

    def receive(self) -> bytes | None:
        """Return the next data frame, or None at the end."""
        try:
            while True:
                first, second = self._read(2)
                size = second & 0x7F
                if size == 126:
                    (size,) = struct.unpack(">H", self._read(2))
                elif size == 127:
                    (size,) = struct.unpack(">Q", self._read(8))
                mask = self._read(4) if second & 0x80 else bytes(4)
                data = self._read(size)
                pattern = (mask * (size // 4 + 1))[:size]
                plain = int.from_bytes(data, "big") ^ int.from_bytes(pattern, "big")
                data = plain.to_bytes(size, "big")
                if first & 0x0F == _CLOSE:
                    return None
                if first & 0x0F == _PING:
                    self.send(data, _PONG)
                elif first & 0x0F == _BINARY:
                    return data
        except (OSError, EOFError):
            return None

    def _read(self, size: int) -> bytes:
        found = self._in.read(size)
        if len(found) < size:
            raise EOFError
        return found

    def close(self) -> None:
        try:
            self.send(b"", _CLOSE)
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
