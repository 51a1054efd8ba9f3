"""The client side of `mesh debug`: opens a stream to a session, and shows it in a terminal."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mesh_telemetry._debug.lines import LineReader, encoded
from mesh_telemetry._debug.routes import STREAM

try:
    import readline
except ImportError:
    # Some builds of Python lack it.
    _readline: Any = None
else:
    _readline = readline

if TYPE_CHECKING:
    from mesh_telemetry._serve.program_client import ProgramClient

__all__ = ["Terminal", "open_session"]

_CONNECT_S = 60.0
_PIECE_LEN = 1 << 16
_HISTORY = "debug-history"
_HISTORY_LEN = 1000


def open_session(client: ProgramClient, session: str, *, how: str, is_kept: bool) -> socket.socket:
    """Open a stream to a session.

    Raises:
        DebugError: The session does not exist, or another client is attached.
        TelemetryError: The program does not respond.
    """
    name = f"{getpass.getuser()} (pid {os.getpid()})"
    greeting = {"how": how, "client": name, "is_kept": is_kept}
    path = f"/debug/attach/{quote(session, safe='')}"
    return client.upgraded(path, greeting, STREAM, timeout_s=_CONNECT_S)


class Terminal:
    """A session in the terminal of a user.

    Args:
        stream: The stream to the session.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def run(self) -> None:
        """Show the output of the session and send typed lines until either side ends."""
        with _InputHistory(), self._stream, suppress(KeyboardInterrupt, ConnectionError):
            reader = LineReader()
            while piece := self._stream.recv(_PIECE_LEN):
                for message in reader.feed(piece):
                    if "text" in message:
                        print(message["text"], end="", flush=True)
                    if "end" in message:
                        print(f"[{message['end']}]")
                        return
                    if "prompt" in message and not self._send_input(message["prompt"]):
                        return
            print("[the session has ended]")

    def _send_input(self, prompt: str) -> bool:
        """Send a line; return False at the end of the input."""
        while True:
            try:
                line = input(prompt)
            except EOFError:
                print()
                return False
            except KeyboardInterrupt:
                print("\n[press Ctrl-D or enter `detach` to leave the session]")
                continue
            self._stream.sendall(encoded({"line": line}))
            return True


class _InputHistory:
    """The input history of earlier sessions, if the terminal supports it."""

    def __enter__(self) -> None:
        self._is_used = _readline is not None and sys.stdin.isatty()
        if self._is_used:
            with suppress(OSError):
                self._path().touch(mode=0o600)
                _readline.read_history_file(self._path())

    def __exit__(self, *_: object) -> None:
        if self._is_used:
            with suppress(OSError):
                _readline.set_history_length(_HISTORY_LEN)
                _readline.write_history_file(self._path())

    def _path(self) -> Path:
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        folder = Path(state, "mesh")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / _HISTORY
