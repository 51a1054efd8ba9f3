"""What goes wrong between a question and its answer."""

from __future__ import annotations

from mesh_core import MeshError

__all__ = ["CoverageError", "DebugError", "QueryError", "StorageError", "TelemetryError"]


class TelemetryError(MeshError):
    """Telemetry could not do what it was asked for."""


class StorageError(TelemetryError):
    """The folder in which processes keep their events cannot be used."""


class DebugError(TelemetryError):
    """A debug session is not there, or in use, or cannot do what it was asked for."""


class QueryError(TelemetryError):
    """The query itself cannot be answered: the message says what to change in it."""


class CoverageError(TelemetryError):
    """Some hosts did not answer, and the caller wants all of them or none did.

    Attributes:
        failed: The hosts, each with the cause as text.
    """

    def __init__(self, text: str, failed: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text, failed)
        self.failed: tuple[tuple[str, str], ...] = failed

    def __str__(self) -> str:
        return str(self.args[0])
