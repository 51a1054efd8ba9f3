"""What a debug session and who is attached to it say to each other: lines of JSON.

A client greets with `{"how": "attach", "client": "who", "is_kept": false}`, and is answered
`{"ok": true}` or `{"error": "why"}`. Then the session says `{"text": ...}` and `{"prompt": ...}`,
and the client `{"line": ...}` to a prompt. `{"end": "why"}` is the last that a session says; a
client just leaves, after `{"is_kept": true}` if nothing is to go on. A greeting with
`"how": "release"` lets the code go on, and one with `"how": "dap"` makes the rest of the connection
that of a debug adapter.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["LineReader", "encoded"]

# What a line may be long: commands are typed by hand, answers are cut before.
_LINE_LEN_MAX = 1 << 22


def encoded(said: dict[str, Any]) -> bytes:
    """Writes what is said, with its line feed."""
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


class LineReader:
    """Makes lines of what comes in, in pieces of any length."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Gives the lines that are complete now.

        Raises:
            ValueError: It is no line of JSON, or too long.
        """
        self._rest += piece
        *lines, rest = bytes(self._rest).split(b"\n")
        if len(rest) > _LINE_LEN_MAX:
            raise ValueError(f"a line of more than {_LINE_LEN_MAX} bytes")
        self._rest = bytearray(rest)
        said = [json.loads(line) for line in lines if line.strip()]
        if not all(isinstance(one, dict) for one in said):
            raise ValueError("a line that is no object")
        return said

    def rest(self) -> bytes:
        """Gives what has come in behind the last line, once."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest
