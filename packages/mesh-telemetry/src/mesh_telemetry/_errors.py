"""Errors of recording and queries, and how they are described."""

from __future__ import annotations

from mesh_core import MeshError, SupervisionError

__all__ = [
    "CoverageError",
    "DebugError",
    "HeapError",
    "PySpyError",
    "QueryError",
    "StorageError",
    "TelemetryError",
    "cause_of",
]


class TelemetryError(MeshError):
    """Raised if an operation of telemetry fails; the base class of its other errors."""


class StorageError(TelemetryError):
    """Raised if the directory in which processes store their events cannot be used."""


class DebugError(TelemetryError):
    """Raised if a debug session does not exist, is in use, or cannot run a request."""


class PySpyError(TelemetryError):
    """Raised if py-spy cannot take stacks; the message names the processes and the causes."""


class HeapError(TelemetryError):
    """Raised if memray cannot take a heap snapshot; the message names the processes and causes."""


class QueryError(TelemetryError):
    """Raised if the query itself is invalid; the message describes what to change in it."""


class CoverageError(TelemetryError):
    """Raised if hosts did not reply although all are required, or if no host replied.

    Attributes:
        failed: The hosts that did not reply, each with the cause as text.
    """

    def __init__(self, text: str, failed: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text, failed)
        self.failed: tuple[tuple[str, str], ...] = failed

    def __str__(self) -> str:
        return str(self.args[0])


def cause_of(error: BaseException) -> str:
    """Describe an error without the location in the code."""
    return error.how() if isinstance(error, SupervisionError) else str(error).partition("\n")[0]


# Tracebacks show the public name, such as mesh_telemetry.QueryError.
for _error in (
    CoverageError,
    DebugError,
    HeapError,
    PySpyError,
    QueryError,
    StorageError,
    TelemetryError,
):
    _error.__module__ = "mesh_telemetry"
