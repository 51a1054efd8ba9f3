"""Runs debugpy in this process, for an editor that uses the Debug Adapter Protocol.

debugpy listens on the loopback interface with a token that only this process knows, and accepts
only connections that come through a session.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mesh_core
from mesh_telemetry._errors import DebugError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from mesh_telemetry._debug.pydevd_debugger import PydevdDebugger

__all__ = ["DebugAdapter", "adapter"]

_PACKAGE = Path(__file__).resolve().parents[1]
_LOOPBACK = "127.0.0.1"
_CONNECT_S = 10.0
_POLL_S = 0.05
_PIECE_LEN = 1 << 16
_HEAD_LEN_MAX = 1 << 12
# The modules of mesh-core that run user code in threads.
_USERS = frozenset(
    {
        "mesh_core._calls.event_loop",
        "mesh_core._calls.own_thread",
        "mesh_core._actors.thread_server",
    }
)


class DebugAdapter:
    """The debugpy of this process, which is started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token = secrets.token_hex(32)
        self._address: tuple[str, int] | None = None
        self._is_connected = False
        self._pydevd: PydevdDebugger | None = None

    @property
    def is_attached(self) -> bool:
        """Whether an editor is attached and has sent its configuration."""
        if not self._is_connected:
            return False
        return self._loaded_pydevd().is_attached

    def connect(self, client: socket.socket, on_end: Callable[[], object]) -> None:
        """Connect an editor to debugpy, in separate threads.

        Args:
            client: The connection of the editor.
            on_end: Called once when either side has ended.

        Raises:
            DebugError: debugpy does not start, or rejects the connection.
        """
        server = None
        try:
            server = socket.create_connection(self._listening(), _CONNECT_S)
            early = _authorize(server, self._token)
            client.sendall(early)
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            if server is not None:
                server.close()
            raise DebugError(f"debugpy cannot be used in this process: {error}") from error
        for one in (client, server):
            one.settimeout(None)
        ended = _ConnectionPair(client, server, (self._detached, on_end))
        self._is_connected = True
        for source, target in ((client, server), (server, client)):
            thread = threading.Thread(
                target=_pump, args=(source, target, ended), name="mesh-debug-adapter", daemon=True
            )
            _exclude_thread(thread)
            thread.start()

    def pause_when_attached(self, frame: FrameType, is_released: Callable[[], bool]) -> None:
        """Pause in a frame once the editor has sent its configuration, unless released before."""
        while not self.is_attached:
            if is_released():
                return
            time.sleep(_POLL_S)
        self.pause(frame)

    def pause(self, frame: FrameType) -> None:
        """Pause in a frame, with an editor that is attached."""
        _exclude_own_threads()
        self._loaded_pydevd().pause(frame)

    def _detached(self) -> None:
        """Let all code continue that the editor has paused, and drop its breakpoints."""
        self._is_connected = False
        self._loaded_pydevd().disconnect()

    def _listening(self) -> tuple[str, int]:
        """Start debugpy if necessary; return its address."""
        with self._lock:
            if self._address is None:
                hook = sys.breakpointhook
                _exclude_own_threads()
                pydevd = self._loaded_pydevd()
                self._address = pydevd.listen((_LOOPBACK, 0), self._token, _own_folders())
                sys.breakpointhook = hook
            return self._address

    def _loaded_pydevd(self) -> PydevdDebugger:
        if self._pydevd is None:
            # debugpy is an optional dependency, and hooks into all threads when it is imported.
            from mesh_telemetry._debug.pydevd_debugger import PydevdDebugger  # noqa: PLC0415

            self._pydevd = PydevdDebugger()
        return self._pydevd


#: The debugpy of this process.
adapter = DebugAdapter()


class _ConnectionPair:
    """Closes both sides of a connection and calls the callbacks, once."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        on_end: Sequence[Callable[[], object]],
    ) -> None:
        self._sockets: tuple[socket.socket, ...] = (client, server)
        self._on_end = on_end
        self._lock = threading.Lock()

    def end(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, ()
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        if sockets:
            for callback in self._on_end:
                callback()
            for one in sockets:
                one.close()


def _pump(source: socket.socket, target: socket.socket, ended: _ConnectionPair) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE_LEN):
            target.sendall(piece)
    ended.end()


def _authorize(server: socket.socket, token: str) -> bytes:
    """Authorize the connection; return the messages that were received before the response.

    Raises:
        OSError: The connection is rejected.
        ValueError: The peer is not a debug adapter.
    """
    arguments = {"debugServerAccessToken": token}
    request = {"seq": 0, "type": "request", "command": "pydevdAuthorize", "arguments": arguments}
    server.sendall(_framed(request))
    early = bytearray()
    while True:
        message = _message(server)
        if message.get("type") != "response":
            early += _framed(message)
        elif message.get("success"):
            return bytes(early)
        else:
            raise ConnectionRefusedError(str(message.get("message")))


def _framed(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _message(server: socket.socket) -> dict[str, Any]:
    """Read exactly one message."""
    head = _exactly(server, 1)
    while not head.endswith(b"\r\n\r\n"):
        if len(head) > _HEAD_LEN_MAX:
            raise ValueError("a message header without an end")
        head += _exactly(server, 1)
    length = next(
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    message: dict[str, Any] = json.loads(_exactly(server, length))
    return message


def _exactly(server: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        piece = server.recv(length - len(found))
        if not piece:
            raise ConnectionResetError("it closed the connection")
        found += piece
    return bytes(found)


def _own_folders() -> tuple[str, ...]:
    """Return the folders of code in which debugpy must not stop, in any thread."""
    found = [Path(file).resolve().parent for file in (mesh_core.__file__,) if file is not None]
    return tuple(map(str, (*found, _PACKAGE)))


def _exclude_own_threads() -> None:
    """Exclude threads that run no user code from debugpy.

    An editor stops all threads of a process at once, but the process must continue to reply.
    """
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None)
        function = getattr(target, "__func__", target)
        module = str(getattr(function, "__module__", ""))
        if module.partition(".")[0] in ("mesh_core", "mesh_telemetry") and module not in _USERS:
            _exclude_thread(thread)


def _exclude_thread(thread: threading.Thread) -> None:
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
    thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
