"""Passing bytes on to the control service of another host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc

from mesh_jobs._control.methods import METHODS
from mesh_jobs._control.status_error import Refusal

__all__ = ["PIECE_LEN", "Relays", "read_address"]

PIECE_LEN = 32 << 10
_RELAYS_MAX = 64
_CONNECT_LIMIT_S = 10.0


class Relays:
    """The relays that a worker runs for its callers."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(_RELAYS_MAX)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Ends all of them."""
        with self._lock:
            for one in self._open:
                _hang_up(one)

    def relay(self, pieces: Iterator[Any], context: Any) -> Iterator[Any]:
        """Connects to where the first piece says, and passes on until one side hangs up."""
        first = next(pieces, None) or METHODS["Relay"].request()
        host, port = read_address(first.address)
        if not self._free.acquire(blocking=False):
            raise Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{_RELAYS_MAX} callers are passed on already: ask fewer hosts at once",
            )
        try:
            with _connected(host, port) as other:
                context.add_callback(lambda: _hang_up(other))
                yield from self._passed_on(first, pieces, other)
        finally:
            self._free.release()

    def _passed_on(self, first: Any, pieces: Iterator[Any], other: socket.socket) -> Iterator[Any]:
        with self._lock:
            self._open.add(other)
        try:
            with suppress(OSError):
                other.sendall(first.content)
                threading.Thread(target=_pass_on, args=(pieces, other), daemon=True).start()
                while content := other.recv(PIECE_LEN):
                    yield METHODS["Relay"].response(content=content)
        finally:
            with self._lock:
                self._open.discard(other)


def read_address(address: str) -> tuple[str, int]:
    """Gives name and port of what is written `name:port`.

    Raises:
        Refusal: It is not that.
    """
    name, _, port = address.rpartition(":")
    if not name or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise Refusal(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"{address!r} is no address: give the host's name and its control port, as name:port",
        )
    return name.strip("[]"), int(port)


def _connected(host: str, port: int) -> socket.socket:
    try:
        other = socket.create_connection((host, port), _CONNECT_LIMIT_S)
    except OSError as error:
        raise Refusal(
            grpc.StatusCode.UNAVAILABLE,
            f"{host}:{port} cannot be reached from here: {error.strerror or error}: look at mesh "
            "status",
        ) from None
    other.settimeout(None)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return other


def _pass_on(pieces: Iterator[Any], other: socket.socket) -> None:
    """Passes on what the caller says, until it hangs up."""
    # How that ends, grpc says by an error of its own.
    with suppress(OSError, grpc.RpcError):
        for piece in pieces:
            other.sendall(piece.content)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def _hang_up(other: socket.socket) -> None:
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)
