"""The methods of the service, with what goes in and out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mesh_jobs._control.messages import SERVICE, message

__all__ = ["METHODS", "Method"]


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        name: What it is called.
        request: The class of what is asked.
        response: The class of what is answered.
        is_stream: Whether there are several answers.
        is_asked_on: Whether there are several questions.
    """

    name: str
    request: Any
    response: Any
    is_stream: bool = False
    is_asked_on: bool = False

    @property
    def path(self) -> str:
        """What it is called on the wire."""
        return f"/{SERVICE}/{self.name}"


METHODS = {
    one.name: one
    for one in (
        Method("List", message("ListRequest"), message("ListResponse")),
        Method("Logs", message("LogsRequest"), message("LogLine"), is_stream=True),
        Method("Stop", message("StopRequest"), message("StopResponse")),
        Method("Stacks", message("StacksRequest"), message("StacksResponse")),
        Method("Relay", message("RelayPiece"), message("RelayPiece"), True, True),
    )
}
