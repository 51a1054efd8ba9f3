"""Errors of a takeover."""

from __future__ import annotations

from mesh_core._errors import MeshError

__all__ = ["TakeOverError"]


class TakeOverError(MeshError):
    """A job could not be taken over; the message contains the reason and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


# Tracebacks show the public name.
TakeOverError.__module__ = "mesh_core"
