"""The error file of a rank, which torch writes for a function with `@record`."""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ["RecordedError"]


class RecordedError(NamedTuple):
    """The content of an error file."""

    message: str
    """The type and the text of the exception, such as `ValueError: no such batch`."""
    traceback: str
    """Empty if the file contains none."""

    @classmethod
    def parse(cls, content: bytes) -> RecordedError | None:
        """Parse an error file; None if it has another format than those of torch."""
        try:
            message = json.loads(content)["message"]
            if isinstance(message, str):
                return cls(message.rstrip(), "")
            traceback = message.get("extraInfo", {}).get("py_callstack", "")
            return cls(str(message["message"]).rstrip(), str(traceback).rstrip())
        except (ValueError, LookupError, TypeError, AttributeError):
            return None

    @property
    def exception_type(self) -> str:
        """The name of the exception's class; empty if the message does not start with one."""
        name, colon, _ = self.message.partition(":")
        return name if colon and name.replace(".", "_").isidentifier() else ""
