"""Code that stands still until somebody has attached to it, and lets it go on."""

from __future__ import annotations

import contextvars
import os
import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress

from mesh_core.spi import is_actor_ending, station
from mesh_telemetry._debug.lines import LineReader, encoded
from mesh_telemetry._events.door import nearby

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = ["PREFIX", "DebugSession"]

#: What the names of the sockets of sessions begin with.
PREFIX = "debug-"
# Exceptions from other threads arrive only between two waits.
_LOOK_S = 0.1
_EDITOR_LOOK_MS = 500.0
_GREETING_S = 2.0
_SEND_S = 10.0
_PIECE_LEN = 1 << 16
_TEXT_LEN_MAX = 1 << 20
_LISTENING_MAX = 16


class DebugSession:
    """A place in the code where a thread stands, and who is attached there.

    One thread stands (`wait`, `say`), another one hears of who comes and goes.

    Args:
        folder: That of the process; nobody else can enter it.
        about: What is told of it: the actor, the function, the line.
        limit_s: After how many seconds it goes on by itself; None for never.

    Attributes:
        id: Its name, unique in the job.
    """

    def __init__(self, folder: Path, about: dict[str, Any], limit_s: float | None) -> None:
        self.id: str = os.urandom(4).hex()
        self._about = about
        self._until = None if limit_s is None else time.monotonic() + limit_s
        self._changed = threading.Condition()
        self._client: socket.socket | None = None
        self._client_name = ""
        self._is_kept = False
        self._is_editor = self._is_stepped = False
        # Whose end is looked for from another thread.
        self._place = contextvars.copy_context()
        self._lines: deque[str] = deque()
        self._is_released = False
        self._is_over = False
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX)
        with nearby(folder, PREFIX + self.id) as path:
            self._socket.bind(path)
        self._socket.listen(_LISTENING_MAX)
        self._bell, self._ear = socket.socketpair()
        thread = threading.Thread(target=self._attend, name=f"mesh-{PREFIX}{self.id}", daemon=True)
        thread.start()

    def row(self) -> dict[str, Any]:
        """Says what it is."""
        with self._changed:
            return {"id": self.id, **self._about, "attached": self._client is not None}

    @property
    def is_released(self) -> bool:
        """Whether the code is to go on, whatever else was asked for."""
        return self._is_released or self._is_late() or is_actor_ending()

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self._is_over

    @property
    def is_editor(self) -> bool:
        """Whether an editor is attached, which speaks another protocol from here on."""
        return self._is_editor

    def editor(self) -> socket.socket:
        """Gives the connection of the editor, to who carries it from now on."""
        assert self._client is not None, "an editor is attached until it is carried"
        return self._client

    def release(self) -> None:
        """Lets the code go on."""
        with self._changed:
            self._is_released = True
            self._changed.notify_all()
            editor = self._client if self._is_editor else None
        if editor is not None:
            # Whoever carries it hears of that, and debugpy lets the code go on.
            with suppress(OSError):
                editor.shutdown(socket.SHUT_RDWR)

    def moved(self, function: str, file: str, line: int) -> None:
        """Notes that the code stands somewhere else now, without a way for editors to join."""
        with self._changed:
            self._about |= {"function": function, "file": file, "line": line}
            self._is_stepped = True

    def wait(self, greeted: object) -> tuple[str | None, object]:
        """Waits, in the thread that stands, until there is something to do.

        Args:
            greeted: Who has been told where the code stands: what was given before.

        Returns:
            A line that somebody has typed; None where the code is to go on, or where somebody
            else is attached than was greeted. Then who is attached.
        """
        while True:
            with self._changed:
                client = self._client
                if (
                    self._is_released
                    or self._is_editor
                    or (client is not None and client is not greeted)
                ):
                    return None, client
                if self._lines:
                    return self._lines.popleft(), client
                self._changed.wait(_LOOK_S)
            if self.is_released:
                return None, client

    def say(self, **said: Any) -> None:
        """Tells who is attached, if anybody is."""
        client = self._client
        if client is None or self._is_editor:
            return
        text = said.get("text")
        if isinstance(text, str) and len(text) > _TEXT_LEN_MAX:
            said["text"] = f"{text[:_TEXT_LEN_MAX]}\n[cut: {len(text)} characters]\n"
        try:
            client.sendall(encoded(said))
        except OSError:
            self._leave(client)

    def close(self, why: str) -> None:
        """Ends it, when the code goes on. Twice is the same as once."""
        with self._changed:
            if self._is_over:
                return
            self._is_over = self._is_released = True
        self.say(end=why)
        with suppress(OSError), nearby(self._folder, PREFIX + self.id) as path:
            os.unlink(path)
        with suppress(OSError):
            self._bell.send(b"x")

    def _is_late(self) -> bool:
        # Who is attached may take their time.
        if self._until is None or self._client is not None:
            return False
        return time.monotonic() > self._until

    def _attend(self) -> None:
        """Hears of who comes and goes, until the session ends."""
        reader = LineReader()
        heard: socket.socket | None = None
        while not self._is_over:
            client = None if self._is_editor else self._client
            if client is not heard:
                reader, heard = LineReader(), client
            poll = select.poll()
            for one in (self._socket, self._ear, client):
                if one is not None and one.fileno() >= 0:
                    poll.register(one, select.POLLIN)
            ready = {
                number for number, _ in poll.poll(_EDITOR_LOOK_MS if self._is_editor else None)
            }
            if self._is_editor and not self._is_released and self._place.run(is_actor_ending):
                self.release()
            if self._socket.fileno() in ready:
                self._greet()
            if client is not None and client.fileno() in ready:
                self._hear(client, reader)
        mine = None if self._is_editor else self._client
        for held in (self._socket, self._bell, self._ear, mine):
            if held is not None:
                held.close()

    def _greet(self) -> None:
        """Lets somebody in, or says why not."""
        try:
            caller, _ = self._socket.accept()
        except OSError:
            return
        try:
            caller.settimeout(_GREETING_S)
            greeting = _greeting_of(caller)
            refusal = self._take_in(caller, greeting)
            if refusal is not None:
                caller.sendall(encoded({"error": refusal}))
        except (OSError, ValueError):
            refusal = ""
        if refusal is not None:
            caller.close()

    def _take_in(self, caller: socket.socket, greeting: dict[str, Any]) -> str | None:
        """Gives why somebody is not let in; None if they are."""
        name = str(greeting.get("client") or "somebody")
        with self._changed:
            if self._client is not None:
                return f"session {self.id} is in use: {self._client_name} is attached"
            is_editor = greeting.get("how") == "dap"
            if is_editor and (why := self._no_editor()) is not None:
                return why
            caller.sendall(encoded({"ok": True}))
            if greeting.get("how") == "release":
                self._is_released = True
                self._changed.notify_all()
                caller.close()
                return None
            caller.settimeout(_SEND_S)
            self._client, self._client_name = caller, name
            self._is_kept = bool(greeting.get("is_kept"))
            self._is_editor = is_editor
            self._lines.clear()
            self._changed.notify_all()
        return None

    def _no_editor(self) -> str | None:
        """Says why no editor can attach; None if one can."""
        if self._about["kind"] != "breakpoint":
            return f"session {self.id} is no breakpoint, as editors need: attach without --dap"
        if self._is_stepped:
            return f"session {self.id} is being stepped through: attach without --dap"
        from mesh_telemetry._debug.adapter import has_debugpy

        if not has_debugpy():
            return (
                f"debugpy is not installed on {station().host_name}: "
                "pip install 'mesh-telemetry[debug]' there"
            )
        return None

    def _hear(self, client: socket.socket, reader: LineReader) -> None:
        """Takes what who is attached has said."""
        try:
            piece = client.recv(_PIECE_LEN)
            said = reader.feed(piece)
        except (OSError, ValueError):
            piece, said = b"", []
        with self._changed:
            for one in said:
                if isinstance(one.get("line"), str):
                    self._lines.append(one["line"])
                if "is_kept" in one:
                    self._is_kept = bool(one["is_kept"])
            self._changed.notify_all()
        if not piece:
            self._leave(client)

    def _leave(self, client: socket.socket) -> None:
        """Somebody is not attached any more: the code goes on, unless it is to be kept standing."""
        with self._changed:
            if self._client is client:
                self._client = None
                self._lines.clear()
                self._is_released |= not self._is_kept
                self._changed.notify_all()
        client.close()


def _greeting_of(caller: socket.socket) -> dict[str, Any]:
    """Reads the first line of somebody.

    Raises:
        OSError: They have left, or are too slow.
        ValueError: It is none.
    """
    reader = LineReader()
    while True:
        piece = caller.recv(_PIECE_LEN)
        if not piece:
            raise ConnectionResetError
        lines = reader.feed(piece)
        if lines:
            return lines[0]
