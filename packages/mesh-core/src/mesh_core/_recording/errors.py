"""Errors of recordings."""

from __future__ import annotations

from mesh_core._errors import MeshError

__all__ = ["NotRecorded", "ValueRedacted"]


class NotRecorded(MeshError):
    """There is no recording of the actor."""


class ValueRedacted(MeshError):
    """A replayed actor uses a value that was redacted from its recording."""
