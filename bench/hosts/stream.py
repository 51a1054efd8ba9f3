"""One TLS 1.3 connection over TCP with Python and OpenSSL: the minimum cost of bulk data.

`serve` accepts connections and reads from them. Any other argument is a host to send to: for each
line of the input, a number of bytes, it prints the seconds until the peer has received them all.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import time
from pathlib import Path

PORT = 26700
_PIECE_LEN = 1 << 20


def serve(identity: Path) -> None:
    """Reply to each message with one byte after all of it has arrived."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(identity)
    with socket.create_server(("", PORT)) as server:
        print(json.dumps("ready"), flush=True)
        while True:
            plain, _ = server.accept()
            with context.wrap_socket(plain, server_side=True) as stream:
                _read(stream)


def _read(stream: ssl.SSLSocket) -> None:
    piece = bytearray(_PIECE_LEN)
    while head := stream.recv(8):
        left = int.from_bytes(head, "little")
        while left:
            left -= stream.recv_into(piece, min(left, len(piece)))
        stream.sendall(b"x")


def send(host: str) -> None:
    """Send as many bytes as each line of the input requests."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, PORT)) as plain,
        context.wrap_socket(plain) as stream,
    ):
        for line in sys.stdin:
            _, length = json.loads(line)
            body = memoryview(os.urandom(length))
            started = time.perf_counter()
            stream.sendall(length.to_bytes(8, "little"))
            for at in range(0, length, _PIECE_LEN):
                stream.sendall(body[at : at + _PIECE_LEN])
            assert stream.recv(1) == b"x"
            print(json.dumps(time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2], "identity.pem"))
    else:
        send(sys.argv[1])
