"""A minimal editor: a client of the Debug Adapter Protocol."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

__all__ = ["Editor"]

_LIMIT_S = 60.0


class Editor:
    """A client of a debug adapter on this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _LIMIT_S)
        self._reader = self._socket.makefile("rb")
        self._count = 0
        self._said: list[dict[str, Any]] = []

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request; return its number."""
        self._count += 1
        said = {"seq": self._count, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(said).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        return self._count

    def response(self, number: int) -> dict[str, Any]:
        """Return the body of the response to a request."""
        said = self._next(lambda one: one.get("request_seq") == number)
        assert said["success"], said
        body: dict[str, Any] = said.get("body") or {}
        return body

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request, and return the body of its response."""
        return self.response(self.send(command, **arguments))

    def event(self, name: str) -> dict[str, Any]:
        """Return the body of the next event of a kind."""
        body: dict[str, Any] = self._next(lambda one: one.get("event") == name).get("body") or {}
        return body

    def attach(self) -> None:
        """Execute the initial sequence of editors."""
        self.ask("initialize", adapterID="debugpy", clientID="test", pathFormat="path")
        attaching = self.send("attach", justMyCode=False, connect={"host": "localhost", "port": 1})
        self.event("initialized")
        self.ask("setExceptionBreakpoints", filters=[])
        configured = self.send("configurationDone")
        self.response(attaching)
        self.response(configured)

    def close(self) -> None:
        """Close the connection without a request."""
        self._reader.close()
        self._socket.close()

    def _next(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first message that matches, and keep the others."""
        while True:
            for at, said in enumerate(self._said):
                if is_wanted(said):
                    return self._said.pop(at)
            self._said.append(self._read())

    def _read(self) -> dict[str, Any]:
        length = 0
        while (line := self._reader.readline()) != b"\r\n":
            assert line, "the adapter has closed the connection"
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        said: dict[str, Any] = json.loads(self._reader.read(length))
        return said
