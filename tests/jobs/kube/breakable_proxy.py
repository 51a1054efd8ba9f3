"""A proxy to the API server that a test can disconnect or silence."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_READ_LEN = 65536


class BreakableProxy:
    """Listens on a separate port and copies bytes between clients and the server."""

    def __init__(self, host: str, port: int, listener: socket.socket | None = None) -> None:
        self._server = (host, port)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        #: Number of accepted connections.
        self.taken: int = 0
        self._flows = threading.Event()
        self._flows.set()
        # A listener that was passed in cannot be created again, so only its connections are cut.
        self._is_kept = listener is not None
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accept()

    def lead_to(self, host: str, port: int) -> None:
        """Forward new connections to another server."""
        self._server = (host, port)

    def _accept(self) -> None:
        threading.Thread(target=self._serve, args=[self._listener], daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                self.taken += 1
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
                self._flows.wait()
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
        """Make the server unreachable for the duration of the block."""
        self._shut()
        try:
            yield
        finally:
            if not self._is_kept:
                self._listener = socket.create_server(("127.0.0.1", self.port))
                self._accept()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Keep connections open and accept new ones, but forward nothing, during the block."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def _shut(self, is_end: bool = False) -> None:
        if is_end or not self._is_kept:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            known = set(self._open)
        self._end(known)

    def end(self) -> None:
        self._flows.set()
        self._shut(is_end=True)
