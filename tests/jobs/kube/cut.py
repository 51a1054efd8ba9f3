"""A way to the API server that a test can cut: connections end, and new ones are refused."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_READ_LEN = 65536


class Cut:
    """Listens on a port of its own and copies bytes between clients and the server."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accept()

    def _accept(self) -> None:
        threading.Thread(target=self._serve, args=[self._listener], daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            with self._lock:
                self._open |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=[one, other], daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while read := one.recv(_READ_LEN):
                other.sendall(read)
        except OSError:
            pass
        self._end({one, other})

    def _end(self, sockets: set[socket.socket]) -> None:
        with self._lock:
            self._open -= sockets
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Nobody reaches the server for as long as the block lasts."""
        self._shut()
        try:
            yield
        finally:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._accept()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            known = set(self._open)
        self._end(known)

    def end(self) -> None:
        self._shut()
