"""Errors of credentials."""

from __future__ import annotations

from mesh_core._errors import MeshError

__all__ = ["CredentialsError"]


class CredentialsError(MeshError, ValueError):
    """Credentials cannot be created, loaded or used; the message has the reason and the remedy.

    One possible reason is a key file that other users can read or that another user owns.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


# Tracebacks show the public name.
CredentialsError.__module__ = "mesh_core"
