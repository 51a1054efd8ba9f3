"""An error with a gRPC status, raised by methods of the control service."""

from __future__ import annotations

from typing import Any

__all__ = ["StatusError"]


class StatusError(Exception):
    """Error that aborts a call with a status other than OK."""

    def __init__(self, code: Any, message: str) -> None:
        super().__init__(message)
        self.code: Any = code
        self.message: str = message
