"""A debug session: code that is paused until a client attaches and lets it continue."""

from __future__ import annotations

import contextvars
import importlib.util
import os
import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress

from mesh_core.spi import current_process
from mesh_telemetry._debug.lines import LineReader, encoded
from mesh_telemetry._events.process_socket import short_socket_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = ["PREFIX", "DebugSession"]

#: Any client, as the receiver of a message.
ANY_CLIENT = object()

#: Prefix of the names of session sockets.
PREFIX = "debug-"
# Exceptions from other threads are raised only between two waits.
_POLL_S = 0.1
_EDITOR_POLL_MS = 500.0
_GREETING_S = 2.0
_SEND_S = 10.0
_PIECE_LEN = 1 << 16
_TEXT_LEN_MAX = 1 << 20
_LISTENING_MAX = 16


class DebugSession:
    """A location where a thread is paused, and the client that is attached to it.

    The paused thread calls `wait` and `send`; another thread serves connections.

    Args:
        folder: The folder of the process, which other users cannot enter.
        description: The description of the session: the actor, the function, the line.
        limit_s: Seconds after which the code continues automatically; None for never.

    Attributes:
        id: Its id, unique in the job.
    """

    def __init__(self, folder: Path, description: dict[str, Any], limit_s: float | None) -> None:
        self.id: str = os.urandom(4).hex()
        self._description = description
        self._until = None if limit_s is None else time.monotonic() + limit_s
        self._changed = threading.Condition()
        self._client: socket.socket | None = None
        self._client_name = ""
        self._is_kept = False
        self._is_editor = self._is_stepped = False
        # The context of the actor, whose end is polled from another thread.
        self._context = contextvars.copy_context()
        self._lines: deque[str] = deque()
        self._is_released = False
        self._is_over = False
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX)
        with short_socket_path(folder, PREFIX + self.id) as path:
            self._socket.bind(path)
        self._socket.listen(_LISTENING_MAX)
        self._waker, self._wake_socket = socket.socketpair()
        thread = threading.Thread(target=self._serve, name=f"mesh-{PREFIX}{self.id}", daemon=True)
        thread.start()

    def row(self) -> dict[str, Any]:
        """Return the description of the session."""
        with self._changed:
            return {"id": self.id, **self._description, "attached": self._client is not None}

    @property
    def is_released(self) -> bool:
        """Whether the code must continue, regardless of other requests."""
        return self._is_released or self._is_late() or current_process.is_actor_ending()

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self._is_over

    @property
    def is_editor(self) -> bool:
        """Whether an editor is attached, which uses another protocol."""
        return self._is_editor

    def editor(self) -> socket.socket:
        """Return the connection of the editor to the code that takes it over."""
        assert self._client is not None, "an editor is attached until it is carried"
        return self._client

    def release(self) -> None:
        """Let the code continue."""
        with self._changed:
            self._is_released = True
            self._changed.notify_all()
            editor = self._client if self._is_editor else None
        if editor is not None:
            # The relay of the connection is notified, and debugpy lets the code continue.
            with suppress(OSError):
                editor.shutdown(socket.SHUT_RDWR)

    def set_location(self, function: str, file: str, line: int) -> None:
        """Record a new location; from now on, no editor can attach."""
        with self._changed:
            self._description |= {"function": function, "file": file, "line": line}
            self._is_stepped = True

    def wait(self, shown_client: object) -> tuple[str | None, object]:
        """Wait in the paused thread until there is something to do.

        Args:
            shown_client: The client to which the location was shown, as returned before.

        Returns:
            A line that the client has sent, or None if the code must continue or another client is
            attached than `shown_client`; and the attached client.
        """
        while True:
            with self._changed:
                client = self._client
                if (
                    self._is_released
                    or self._is_editor
                    or (client is not None and client is not shown_client)
                ):
                    return None, client
                if self._lines:
                    return self._lines.popleft(), client
                self._changed.wait(_POLL_S)
            if self.is_released:
                return None, client

    def send(self, *, to: object = ANY_CLIENT, **message: Any) -> None:
        """Send a message to the client, if one is attached.

        Args:
            to: Send it only if this client is attached.
            message: The message.
        """
        client = self._client
        if client is None or self._is_editor or not (to is ANY_CLIENT or to is client):
            return
        text = message.get("text")
        if isinstance(text, str) and len(text) > _TEXT_LEN_MAX:
            message["text"] = f"{text[:_TEXT_LEN_MAX]}\n[cut: {len(text)} characters]\n"
        try:
            client.sendall(encoded(message))
        except OSError:
            self._detach(client)

    def close(self, why: str) -> None:
        """End the session when the code continues; later calls do nothing."""
        with self._changed:
            if self._is_over:
                return
            self._is_over = self._is_released = True
        self.send(end=why)
        with suppress(OSError), short_socket_path(self._folder, PREFIX + self.id) as path:
            os.unlink(path)
        with suppress(OSError):
            self._waker.send(b"x")

    def _is_late(self) -> bool:
        # The limit does not apply while a client is attached.
        if self._until is None or self._client is not None:
            return False
        return time.monotonic() > self._until

    def _serve(self) -> None:
        """Serve connections until the session ends."""
        reader = LineReader()
        served: socket.socket | None = None
        while not self._is_over:
            client = None if self._is_editor else self._client
            if client is not served:
                reader, served = LineReader(), client
            poll = select.poll()
            for one in (self._socket, self._wake_socket, client):
                if one is not None and one.fileno() >= 0:
                    poll.register(one, select.POLLIN)
            ready = {
                number for number, _ in poll.poll(_EDITOR_POLL_MS if self._is_editor else None)
            }
            if (
                self._is_editor
                and not self._is_released
                and self._context.run(current_process.is_actor_ending)
            ):
                self.release()
            if client is not None and client.fileno() in ready:
                # Served before new clients: if this client has disconnected, it no longer occupies
                # the session.
                self._read_client(client, reader)
            elif self._socket.fileno() in ready:
                self._accept()
        mine = None if self._is_editor else self._client
        for each in (self._socket, self._waker, self._wake_socket, mine):
            if each is not None:
                each.close()

    def _accept(self) -> None:
        """Accept a client, or send it the reason for the rejection."""
        try:
            client, _ = self._socket.accept()
        except OSError:
            return
        try:
            client.settimeout(_GREETING_S)
            greeting = _read_greeting(client)
            refusal = self._attach(client, greeting)
            if refusal is not None:
                client.sendall(encoded({"error": refusal}))
        except (OSError, ValueError):
            refusal = ""
        if refusal is not None:
            client.close()

    def _attach(self, client: socket.socket, greeting: dict[str, Any]) -> str | None:
        """Attach a client; return the reason if it is rejected, else None."""
        name = str(greeting.get("client") or "somebody")
        with self._changed:
            if self._client is not None:
                return f"session {self.id} is in use: {self._client_name} is attached"
            is_editor = greeting.get("how") == "dap"
            if is_editor and (why := self._editor_refusal()) is not None:
                return why
            client.sendall(encoded({"ok": True}))
            if greeting.get("how") == "release":
                self._is_released = True
                self._changed.notify_all()
                client.close()
                return None
            client.settimeout(_SEND_S)
            self._client, self._client_name = client, name
            self._is_kept = bool(greeting.get("is_kept"))
            self._is_editor = is_editor
            self._lines.clear()
            self._changed.notify_all()
        return None

    def _editor_refusal(self) -> str | None:
        """Return why no editor can attach; None if one can."""
        if self._description["kind"] != "breakpoint":
            return f"session {self.id} is not at a breakpoint: attach without --dap"
        if self._is_stepped:
            return f"session {self.id} has been stepped through with pdb: attach without --dap"
        if not _has_debugpy():
            return (
                f"debugpy is not installed on {current_process.location().host_name}: "
                "pip install 'torchmesh-telemetry[debug]' there"
            )
        return None

    def _read_client(self, client: socket.socket, reader: LineReader) -> None:
        """Process data from the attached client."""
        try:
            piece = client.recv(_PIECE_LEN)
            message = reader.feed(piece)
        except (OSError, ValueError):
            piece, message = b"", []
        with self._changed:
            for one in message:
                if isinstance(one.get("line"), str):
                    self._lines.append(one["line"])
                if "is_kept" in one:
                    self._is_kept = bool(one["is_kept"])
            self._changed.notify_all()
        if not piece:
            self._detach(client)

    def _detach(self, client: socket.socket) -> None:
        """Detach a client; the code continues unless it must stay paused."""
        with self._changed:
            if self._client is client:
                self._client = None
                self._lines.clear()
                self._is_released |= not self._is_kept
                self._changed.notify_all()
        client.close()


def _has_debugpy() -> bool:
    """Return whether debugpy is installed."""
    try:
        return importlib.util.find_spec("debugpy") is not None
    except ValueError:
        # The module is hidden.
        return False


def _read_greeting(client: socket.socket) -> dict[str, Any]:
    """Read the first line from a client.

    Raises:
        OSError: The client has disconnected, or is too slow.
        ValueError: The line is invalid.
    """
    reader = LineReader()
    while True:
        piece = client.recv(_PIECE_LEN)
        if not piece:
            raise ConnectionResetError
        lines = reader.feed(piece)
        if lines:
            return lines[0]
