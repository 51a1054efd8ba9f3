"""One thread that accepts connections, and serves them until their peers have authenticated.

Unauthenticated peers have no dedicated thread, so a flood of them costs only descriptors and memory
within the limits of a `ConnectionLimiter`.
"""

from __future__ import annotations

import errno
import resource
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from mesh_core.spi import Admission, ConnectionLimiter
from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._serve.peer_user import PeerUsers

__all__ = [
    "READ",
    "WRITE",
    "AcceptLoop",
    "Connection",
    "Readiness",
    "connection_limiter",
    "listener",
    "received",
]

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

#: Called with the events for which a socket is ready.
Readiness = Callable[[int], object]


class Connection(Protocol):
    """A connection from the point of view of the loop.

    Attributes:
        sock: The socket of the peer.
    """

    sock: socket.socket

    def start(self, admission: Admission) -> None:
        """Start reading. The admission is released when the connection is closed."""

    def close(self) -> None:
        """Close the connection, in the thread of the loop; it may not have been started."""


_BACKLOG = 1024
_ACCEPTS_PER_TURN = 32
# Every peer that is not evicted has this long to send its token.
_GRACE_S = 0.005
_DEADLINE_S = 10.0
_AUTHENTICATED_MAX = 256
_UNAUTHENTICATED_MIN = 4
_STOP_TIMEOUT_S = 5.0
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def listener(port: int) -> socket.socket:
    """Listen on the loopback interface.

    Args:
        port: The port; 0 for any free port.

    Raises:
        TelemetryError: The port is taken.
    """
    try:
        made = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    except OSError as error:
        raise TelemetryError(
            f"cannot listen on port {port} ({error}): choose another one, or 0 for any"
        ) from error
    made.setblocking(False)
    return made


def received(sock: socket.socket, length_max: int) -> bytes | None:
    """Read from a nonblocking socket.

    Returns:
        The bytes; None if there are none yet; empty if the connection is closed or lost.
    """
    try:
        return sock.recv(length_max)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""


def connection_limiter(
    unauthenticated_max: int, deadline_s: float | None = None
) -> ConnectionLimiter:
    """Return the connection limiter for a server of this process.

    Args:
        unauthenticated_max: The maximum number of unauthenticated connections. It is reduced to a
            sixteenth of the descriptors that this process may have.
        deadline_s: Seconds that a peer has to authenticate.
    """
    descriptors_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors_max != resource.RLIM_INFINITY:
        share = max(_UNAUTHENTICATED_MIN, descriptors_max // 16)
        unauthenticated_max = min(unauthenticated_max, share)
    return ConnectionLimiter(
        authenticated_max=_AUTHENTICATED_MAX,
        unauthenticated_max=unauthenticated_max,
        # One user must leave capacity for other users of the machine.
        per_peer_max=unauthenticated_max // 2,
        deadline_s=_DEADLINE_S if deadline_s is None else deadline_s,
        grace_s=_GRACE_S,
    )


class AcceptLoop:
    """Accepts connections and polls them in a dedicated thread, from `start` to `close`.

    `watch`, `change`, `forget` and `leave` must be called from callbacks in that thread.

    Args:
        listening: The listening socket, which is nonblocking. The loop closes it.
        limiter: Decides which connections stay open.
        accepted: Returns the connection of a new socket, which is nonblocking.
        name: The name of the thread.
    """

    def __init__(
        self,
        listening: socket.socket,
        limiter: ConnectionLimiter,
        accepted: Callable[[socket.socket], Connection],
        name: str,
    ) -> None:
        self._listening = listening
        self._limiter = limiter
        self._accepted = accepted
        self._selector = selectors.DefaultSelector()
        self._waker, self._wake = socket.socketpair()
        self._is_closed = False
        self._peers = PeerUsers()
        self._waiting: Connection | None = None
        self._open: set[Connection] = set()
        # When accepting resumes; 0 unless it is paused.
        self._paused_until = 0.0
        self._selector.register(self._waker, READ, lambda _: None)
        self._selector.register(listening, READ, lambda _: self._accept())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start accepting connections."""
        self._thread.start()

    @property
    def port(self) -> int:
        """The port of the listening socket."""
        port: int = self._listening.getsockname()[1]
        return port

    def watch(self, sock: socket.socket, events: int, ready: Readiness) -> None:
        """Register a callback that is called whenever a socket is ready."""
        self._selector.register(sock, events, ready)

    def change(self, sock: socket.socket, events: int, ready: Readiness) -> None:
        """Change the events for which a socket is polled; 0 for none."""
        is_watched = sock in self._selector.get_map()
        if events and is_watched:
            self._selector.modify(sock, events, ready)
        elif events:
            self._selector.register(sock, events, ready)
        elif is_watched:
            self._selector.unregister(sock)

    def forget(self, sock: socket.socket) -> None:
        """Stop polling a socket."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def leave(self, connection: Connection) -> None:
        """Remove a connection that was closed, or that another thread has taken over."""
        self._open.discard(connection)

    def close(self) -> None:
        """Stop accepting, and close all connections that have not left."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(OSError):
            self._wake.send(b"\0")
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._is_closed:
                for key, events in self._selector.select(self._timeout_s()):
                    # An earlier callback of this iteration may have closed the socket.
                    if self._selector.get_map().get(key.fd) is key:
                        self._call(key, events)
        finally:
            self._listening.close()
            if self._waiting is not None:
                self._waiting.close()
            for connection in list(self._open):
                connection.close()
            self._selector.close()
            self._peers.close()
            self._waker.close()
            self._wake.close()

    def _call(self, key: selectors.SelectorKey, events: int) -> None:
        try:
            key.data(events)
        except Exception:
            # An error in one connection must not end the others. Without events, this one ends at
            # its deadline.
            self._selector.unregister(key.fd)
            traceback.print_exc()

    def _timeout_s(self) -> float | None:
        deadline_s = self._limiter.expire()
        if not self._paused_until:
            return deadline_s
        paused_s = self._paused_until - time.monotonic()
        if paused_s <= 0:
            self._paused_until = 0.0
            self._selector.register(self._listening, READ, lambda _: self._accept())
            # The connection that waits for admission causes no event.
            self._accept()
            return self._timeout_s()
        return paused_s if deadline_s is None else min(paused_s, deadline_s)

    def _pause(self) -> None:
        self._paused_until = time.monotonic() + _GRACE_S
        self.forget(self._listening)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            connection = self._next()
            if connection is None:
                return
            admission = self._limiter.admit(connection.close, self._peers.of(connection.sock))
            if admission is None:
                self._waiting = connection
                self._pause()
                return
            self._open.add(connection)
            connection.start(admission)

    def _next(self) -> Connection | None:
        """Return the connection that waits for admission, or a new one if there is one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            return waiting
        try:
            sock, _ = self._listening.accept()
        except OSError as error:
            # Instead of failing when it has no descriptors left, the server evicts a connection.
            if error.errno in _OUT_OF_DESCRIPTORS and not self._limiter.evict():
                self._pause()
            return None
        sock.setblocking(False)
        return self._accepted(sock)
