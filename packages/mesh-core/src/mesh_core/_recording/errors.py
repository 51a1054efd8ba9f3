"""Errors of recordings."""

from __future__ import annotations

from mesh_core._errors import MeshError

__all__ = ["NotRecorded"]


class NotRecorded(MeshError):
    """There is no recording of the actor."""
