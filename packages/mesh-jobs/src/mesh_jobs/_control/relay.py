"""The server side of relays, which forward bytes to the control service of another host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc

from mesh_jobs._control.methods import METHODS
from mesh_jobs._control.status_error import StatusError

__all__ = ["PIECE_LEN", "RelayServer", "read_address"]

PIECE_LEN = 32 << 10
_RELAYS_MAX = 64
_CONNECT_LIMIT_S = 10.0


class RelayServer:
    """The open relays of a worker, limited in number."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(_RELAYS_MAX)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all relays."""
        with self._lock:
            for one in self._open:
                _shut_down(one)

    def relay(self, pieces: Iterator[Any], context: Any) -> Iterator[Any]:
        """Connect to the address in the first piece, and forward until one side closes."""
        first = next(pieces, None) or METHODS["Relay"].request()
        host, port = read_address(first.address)
        if not self._free.acquire(blocking=False):
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{_RELAYS_MAX} calls are already relayed: query fewer hosts at once",
            )
        try:
            with _connected(host, port) as other:
                context.add_callback(lambda: _shut_down(other))
                yield from self._stream(first, pieces, other)
        finally:
            self._free.release()

    def _stream(self, first: Any, pieces: Iterator[Any], other: socket.socket) -> Iterator[Any]:
        with self._lock:
            self._open.add(other)
        try:
            with suppress(OSError):
                other.sendall(first.content)
                threading.Thread(target=_forward, args=(pieces, other), daemon=True).start()
                while content := other.recv(PIECE_LEN):
                    yield METHODS["Relay"].response(content=content)
        finally:
            with self._lock:
                self._open.discard(other)


def read_address(address: str) -> tuple[str, int]:
    """Parse an address of the form `name:port`.

    Raises:
        StatusError: The address has another form.
    """
    name, _, port = address.rpartition(":")
    if not name or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise StatusError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"{address!r} is not an address: give the host's name and its control port, as "
            "name:port",
        )
    return name.strip("[]"), int(port)


def _connected(host: str, port: int) -> socket.socket:
    try:
        other = socket.create_connection((host, port), _CONNECT_LIMIT_S)
    except OSError as error:
        raise StatusError(
            grpc.StatusCode.UNAVAILABLE,
            f"{host}:{port} cannot be reached from here: {error.strerror or error}: see mesh "
            "status",
        ) from None
    other.settimeout(None)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return other


def _forward(pieces: Iterator[Any], other: socket.socket) -> None:
    """Forward what the caller sends, until it closes its side."""
    # grpc ends the iterator with its own error when the call ends.
    with suppress(OSError, grpc.RpcError):
        for piece in pieces:
            other.sendall(piece.content)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def _shut_down(other: socket.socket) -> None:
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)
