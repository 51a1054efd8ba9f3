"""The error of calls of the control service; independent of grpc."""

from __future__ import annotations

from mesh_jobs._errors import JobError

__all__ = ["ControlError"]


class ControlError(JobError):
    """The control service of a host rejected a call, or cannot be reached.

    Attributes:
        code: The gRPC status code, such as `NOT_FOUND`.
    """

    def __init__(self, message: str, code: str = "UNAVAILABLE") -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_unreachable(self) -> bool:
        """Whether the service did not respond."""
        return self.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
