"""What goes wrong with telemetry, each with what to do about it."""

from __future__ import annotations

from mesh_core import MeshError

__all__ = ["CoverageError", "QueryError", "StorageError", "TelemetryError"]


class TelemetryError(MeshError):
    """Something of telemetry cannot be done."""


class StorageError(TelemetryError):
    """The folder in which processes keep their events cannot be used."""


class QueryError(TelemetryError):
    """A question cannot be answered as it is put."""


class CoverageError(TelemetryError):
    """Not all hosts have answered, and the question was to be answered by all."""
