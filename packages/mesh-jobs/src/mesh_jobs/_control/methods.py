"""The methods of the control service, with their request and response types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mesh_jobs._control.messages import SERVICE, message

__all__ = ["METHODS", "Method"]


@dataclass(frozen=True, slots=True)
class Method:
    """A method.

    Attributes:
        name: The name of the method.
        request: The class of the request message.
        response: The class of the response message.
        is_stream: Whether the method returns a stream of responses.
        has_request_stream: Whether the method accepts a stream of requests.
    """

    name: str
    request: Any
    response: Any
    is_stream: bool = False
    has_request_stream: bool = False

    @property
    def path(self) -> str:
        """The path of the method in gRPC requests."""
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
