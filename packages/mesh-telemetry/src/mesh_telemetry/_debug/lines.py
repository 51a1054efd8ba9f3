"""The protocol between a debug session and its client: lines of JSON.

A client sends `{"how": "attach", "client": "who", "is_kept": false}`, and receives `{"ok": true}`
or `{"error": "why"}`. Then the session sends `{"text": ...}` and `{"prompt": ...}`, and the client
replies to a prompt with `{"line": ...}`. The last message of a session is `{"end": "why"}`. A
client detaches by closing the connection, after `{"is_kept": true}` if the code must stay paused.
With `"how": "release"`, the code continues; with `"how": "dap"`, the rest of the connection uses
the Debug Adapter Protocol.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["LineReader", "encoded"]

# Limit for a line: commands are typed by hand, and longer output is truncated before.
_LINE_LEN_MAX = 1 << 22


def encoded(message: dict[str, Any]) -> bytes:
    """Encode a message, including its line feed."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class LineReader:
    """Splits incoming bytes into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Return the messages that are complete now.

        Raises:
            ValueError: A line is not a JSON object, or too long.
        """
        self._rest += piece
        *lines, rest = bytes(self._rest).split(b"\n")
        if len(rest) > _LINE_LEN_MAX:
            raise ValueError(f"a line of more than {_LINE_LEN_MAX} bytes")
        self._rest = bytearray(rest)
        message = [json.loads(line) for line in lines if line.strip()]
        if not all(isinstance(one, dict) for one in message):
            raise ValueError("a line is not a JSON object")
        return message

    def rest(self) -> bytes:
        """Return the bytes after the last line, once."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest
