"""The listener in front of the Flight server, which limits connections because gRPC cannot.

The server of pyarrow listens on a Unix socket that only this process can reach, and the bytes of
client and server are relayed. gRPC does not expose which connection a call belongs to. However, the
token is checked before any method runs, so the server sends a message (a DATA frame of HTTP/2) only
to a client whose token is valid. The connection counts as authenticated from the first such frame
on.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_telemetry._serve.accept_loop import READ, WRITE, AcceptLoop, received

if TYPE_CHECKING:
    from mesh_core.spi import Admission

__all__ = ["DataFrameScan", "RelayedConnection", "ServerConnections"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Bytes that a client may send before it is authenticated.
_UNAUTHENTICATED_LEN_MAX = 256 << 10
#: Bytes that are buffered for a side that does not read.
_PIECE_LEN = 256 << 10
_FRAME_HEAD_LEN = 9
_DATA = 0
#: Connections of one peer that it has closed, but the server has not.
_ENDING_MAX = 8


class DataFrameScan:
    """Searches a stream of HTTP/2 frames for a DATA frame with content.

    Example:
        >>> settings, data = bytes.fromhex("000000 04 00 00000000"), bytes.fromhex("000001 00")
        >>> scan = DataFrameScan()
        >>> scan.feed(settings), scan.feed(data), scan.feed(bytes(6))
        (False, False, True)
    """

    def __init__(self) -> None:
        self._head = b""
        self._skip_len = 0

    def feed(self, piece: bytes) -> bool:
        """Return whether such a frame has begun in the input so far."""
        at = 0
        while at < len(piece):
            skipped = min(self._skip_len, len(piece) - at)
            self._skip_len -= skipped
            at += skipped
            missing = _FRAME_HEAD_LEN - len(self._head)
            taken = piece[at : at + missing]
            self._head += taken
            at += len(taken)
            if len(self._head) == _FRAME_HEAD_LEN:
                self._skip_len = int.from_bytes(self._head[:3], "big")
                if self._head[3] == _DATA and self._skip_len:
                    return True
                self._head = b""
        return False


class ServerConnections:
    """Connections to the server, including closed ones that the server has yet to close.

    gRPC takes a while to detect that a connection has ended. Peers that open and close connections
    quickly must not make it hold an unlimited number of descriptors.

    Args:
        loop: Polls for the server's side being closed.
        connect: Returns a new connection to the server, which is nonblocking.
    """

    def __init__(self, loop: AcceptLoop, connect: Callable[[], socket.socket]) -> None:
        self._loop = loop
        self._connect = connect
        self._ending: dict[socket.socket, Hashable] = {}
        self._waiting: list[Callable[[], object]] = []

    def open(self, peer: Hashable, retry: Callable[[], object]) -> socket.socket | None:
        """Connect to the server.

        Args:
            peer: The peer on whose behalf the connection is opened.
            retry: Called when the attempt can be repeated.

        Returns:
            The connection; None if the peer has too many connections that the server has yet to
            close.

        Raises:
            OSError: The server cannot be reached.
        """
        if sum(one == peer for one in self._ending.values()) < _ENDING_MAX:
            return self._connect()
        self._waiting.append(retry)
        return None

    def end(self, sock: socket.socket, peer: Hashable) -> None:
        """Close a connection once the server has closed its side."""
        self._ending[sock] = peer
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        self._loop.change(sock, READ, lambda _: self._drain(sock))

    def close(self) -> None:
        """Close the remaining connections after the loop has ended."""
        for sock in self._ending:
            sock.close()
        self._ending.clear()

    def _drain(self, sock: socket.socket) -> None:
        try:
            is_over = not sock.recv(_PIECE_LEN)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            is_over = True
        if is_over:
            self._loop.forget(sock)
            sock.close()
            del self._ending[sock]
            waiting, self._waiting = self._waiting, []
            for retry in waiting:
                retry()


class RelayedConnection:
    """Relays one connection of a client to the server.

    Args:
        loop: Polls both sides.
        client: The connection of the client, which is nonblocking.
        servers: Provides connections to the server.

    Attributes:
        sock: The connection of the client.
    """

    def __init__(self, loop: AcceptLoop, client: socket.socket, servers: ServerConnections) -> None:
        self._loop = loop
        self.sock: socket.socket = client
        self._servers = servers
        self._server: socket.socket | None = None
        self._admission: Admission | None = None
        self._to_server = b""
        self._to_client = b""
        self._scan: DataFrameScan | None = DataFrameScan()
        self._unauthenticated_len = 0
        self._is_closed = False

    def start(self, admission: Admission) -> None:
        """Start reading from the client."""
        self._admission = admission
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.watch(self.sock, READ, self._read_preface)
        self._read_preface(READ)

    def close(self) -> None:
        """Close both sides."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.leave(self)
        self._loop.forget(self.sock)
        self.sock.close()
        if self._admission is None:
            return
        if self._server is not None:
            self._servers.end(self._server, self._admission.peer)
        self._admission.release()

    def _read_preface(self, _events: int) -> None:
        """Read the HTTP/2 connection preface; the server is contacted only after it is complete."""
        piece = self._received(self.sock, _PIECE_LEN)
        if piece is None:
            return
        self._to_server += piece
        length = min(len(self._to_server), len(_PREFACE))
        if self._to_server[:length] != _PREFACE[:length]:
            self.close()
        elif length == len(_PREFACE):
            self._unauthenticated_len = len(self._to_server)
            self._loop.change(self.sock, 0, self._client_ready)
            self._open_server()

    def _open_server(self) -> None:
        """Connect to the server, now or when the peer has fewer closing connections."""
        if self._is_closed:
            return
        assert self._admission is not None, "it was started"
        try:
            self._server = self._servers.open(self._admission.peer, self._open_server)
        except OSError:
            self.close()
            return
        if self._server is not None:
            self._to_server = self._sent(self._server, self._to_server)
            self._wait()

    def _client_ready(self, events: int) -> None:
        if events & WRITE:
            self._to_client = self._sent(self.sock, self._to_client)
        if events & READ and not self._is_closed:
            assert self._server is not None, "it is connected"
            piece = self._received(self.sock, _PIECE_LEN)
            if piece is not None:
                if self._scan is not None:
                    self._unauthenticated_len += len(piece)
                self._to_server = self._sent(self._server, piece)
        self._wait()

    def _server_ready(self, events: int) -> None:
        assert self._server is not None, "it is connected"
        if events & WRITE:
            self._to_server = self._sent(self._server, self._to_server)
        if events & READ and not self._is_closed:
            piece = self._received(self._server, _PIECE_LEN)
            if piece is not None and self._is_permitted(piece):
                self._to_client = self._sent(self.sock, piece)
        self._wait()

    def _is_permitted(self, piece: bytes) -> bool:
        """Return whether the client may receive data from the server; otherwise close."""
        if self._scan is None or not self._scan.feed(piece):
            return True
        assert self._admission is not None, "it was started"
        if self._admission.authenticate():
            self._scan = None
            return True
        self.close()
        return False

    def _received(self, sock: socket.socket, length_max: int) -> bytes | None:
        """Return the bytes that have arrived; None if there are none or the peer has closed."""
        piece = received(sock, length_max)
        if piece == b"":
            self.close()
            return None
        return piece

    def _sent(self, sock: socket.socket, piece: bytes) -> bytes:
        """Send as many bytes as possible, and return the rest."""
        if self._is_closed:
            return b""
        try:
            return piece[sock.send(piece) :]
        except (BlockingIOError, InterruptedError):
            return piece
        except OSError:
            self.close()
            return b""

    def _wait(self) -> None:
        """Poll each side for reading only while the other side accepts data."""
        if self._is_closed:
            return
        assert self._server is not None, "it is connected"
        is_over = self._scan is not None and self._unauthenticated_len > _UNAUTHENTICATED_LEN_MAX
        reads_client = not self._to_server and not is_over
        client_events = READ * reads_client | WRITE * bool(self._to_client)
        server_events = READ * (not self._to_client) | WRITE * bool(self._to_server)
        self._loop.change(self.sock, client_events, self._client_ready)
        self._loop.change(self._server, server_events, self._server_ready)
