"""The side of `mesh debug`: asks a program over HTTP, and talks to a session in a terminal."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from mesh_telemetry._debug.lines import LineReader, encoded
from mesh_telemetry._debug.routes import STREAM
from mesh_telemetry._errors import DebugError, QueryError, TelemetryError
from mesh_telemetry._serve import asking_served

if TYPE_CHECKING:
    from mesh_telemetry._serve.served import Served

__all__ = ["Terminal", "asked", "opened"]

_CONNECT_S = 60.0
_PIECE_LEN = 1 << 16
_HEAD_LEN_MAX = 1 << 14
_HISTORY = "debug-history"
_HISTORY_LEN = 1000


def asked(served: Served, path: str, said: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Asks a program something.

    Raises:
        DebugError: It says what is wrong.
        TelemetryError: It does not answer.
    """
    try:
        with asking_served.opened(served, path, json.dumps(said).encode(), timeout_s) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer
    except QueryError as error:
        raise DebugError(str(error)) from error


def opened(served: Served, session: str, *, how: str, is_kept: bool) -> socket.socket:
    """Opens a stream to a session.

    Raises:
        DebugError: It is not there, or somebody else is attached.
        TelemetryError: The program does not answer.
    """
    place = urlsplit(served.url)
    client = f"{getpass.getuser()} (pid {os.getpid()})"
    body = json.dumps({"how": how, "client": client, "is_kept": is_kept}).encode()
    lines = (
        f"POST /debug/attach/{quote(session, safe='')} HTTP/1.1",
        f"Host: {place.netloc}",
        f"Authorization: Bearer {served.token}",
        "Connection: Upgrade",
        f"Upgrade: {STREAM}",
        f"Content-Length: {len(body)}",
    )
    try:
        stream = socket.create_connection((place.hostname, place.port or 80), _CONNECT_S)
    except OSError as error:
        raise TelemetryError(f"program {served.pid} does not answer: {error}") from error
    try:
        stream.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        status = _head_of(stream).split(None, 2)[1:2]
        if status != [b"101"]:
            raise DebugError(asking_served.refusal(_rest_of(stream)))
        stream.settimeout(None)
    except OSError as error:
        stream.close()
        raise TelemetryError(f"program {served.pid} does not answer: {error}") from error
    except BaseException:
        stream.close()
        raise
    return stream


def _head_of(stream: socket.socket) -> bytes:
    """Reads the head of an answer, and not a byte of what follows: that belongs to the session."""
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        byte = stream.recv(1)
        if not byte or len(head) > _HEAD_LEN_MAX:
            raise ConnectionResetError("it has closed the connection")
        head += byte
    return bytes(head)


def _rest_of(stream: socket.socket) -> bytes:
    body = bytearray()
    while piece := stream.recv(_PIECE_LEN):
        body += piece
    return bytes(body)


class Terminal:
    """A session in the terminal of a user.

    Args:
        stream: To the session.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def talk(self) -> None:
        """Shows what the session says, and sends what is typed, until either has enough."""
        with _history(), self._stream, suppress(KeyboardInterrupt, ConnectionError):
            reader = LineReader()
            while piece := self._stream.recv(_PIECE_LEN):
                for said in reader.feed(piece):
                    if "text" in said:
                        print(said["text"], end="", flush=True)
                    if "end" in said:
                        print(f"[{said['end']}]")
                        return
                    if "prompt" in said and not self._answer(said["prompt"]):
                        return
            print("[the session has ended]")

    def _answer(self, prompt: str) -> bool:
        """Sends a line; says whether there was one."""
        while True:
            try:
                line = input(prompt)
            except EOFError:
                print()
                return False
            except KeyboardInterrupt:
                print("\n[Ctrl-D or `detach` leaves the session]")
                continue
            self._stream.sendall(encoded({"line": line}))
            return True


class _history:
    """What was typed in earlier sessions, where the terminal can show it."""

    def __enter__(self) -> None:
        self._readline: Any = None
        if not sys.stdin.isatty():
            return
        with suppress(ImportError, OSError):
            import readline

            self._readline = readline
            self._path().touch(mode=0o600)
            readline.read_history_file(self._path())

    def __exit__(self, *_: object) -> None:
        if self._readline is not None:
            with suppress(OSError):
                self._readline.set_history_length(_HISTORY_LEN)
                self._readline.write_history_file(self._path())

    def _path(self) -> Path:
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        folder = Path(state, "mesh")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / _HISTORY
