"""A debug session with a client that attaches before the debugger is ready."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path
from typing import Any

from recorded_actors import LIMIT_S

from mesh_core.testing import wait_until
from mesh_telemetry._debug.debugger import Debugger
from mesh_telemetry._debug.lines import LineReader, encoded
from mesh_telemetry._debug.session import PREFIX, DebugSession


class Client:
    """A client of a session."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path))
        self._lines = LineReader()
        self._received: list[dict[str, Any]] = []

    def send(self, **message: str) -> None:
        self.socket.sendall(encoded(message))

    def until_prompt(self) -> str:
        """Return the text up to the next prompt."""
        text = ""
        while True:
            while not self._received:
                self._received += self._lines.feed(self.socket.recv(1 << 16))
            message = self._received.pop(0)
            text += message.get("text", "")
            if "prompt" in message:
                return text


def test_a_client_that_attaches_early_is_prompted_once(tmp_path: Path) -> None:
    session = DebugSession(tmp_path, {"function": "f"}, LIMIT_S)
    client = Client(tmp_path / f"{PREFIX}{session.id}")
    client.send(client="test")
    wait_until(lambda: session.row()["attached"], LIMIT_S)

    def pause() -> None:
        try:
            answer = 42
            raise ValueError(answer)
        except ValueError:
            Debugger(session).pause_at_exception(sys.exc_info()[2])

    paused = threading.Thread(target=pause)
    paused.start()
    try:
        assert "raise ValueError(answer)" in client.until_prompt()
        client.send(line="p answer")
        assert client.until_prompt() == "42\n"
    finally:
        session.release()
        paused.join(LIMIT_S)
        session.close("the test is over")
        client.socket.close()
