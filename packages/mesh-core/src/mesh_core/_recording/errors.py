"""Errors of recordings."""

from __future__ import annotations

from mesh_core._errors import MeshError

__all__ = ["NotRecorded", "ValueRedacted"]


class NotRecorded(MeshError):
    """There is no recording of the actor."""


class ValueRedacted(MeshError):
    """A replayed actor uses a value that was redacted from its recording."""


# Tracebacks show the public name, such as mesh_core.recording.NotRecorded.
for _error in (NotRecorded, ValueRedacted):
    _error.__module__ = "mesh_core.recording"
