"""A trace of a program as a file for ui.perfetto.dev."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_telemetry._profile.profile import ProfileTrace
from mesh_telemetry._profile.rows import ProfileRows
from mesh_telemetry._profile.trace_output import trace_output
from mesh_telemetry._query.coverage import HostFailure

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from mesh_telemetry._profile.rows import QueryFunction

__all__ = ["TraceFile", "trace_path", "write_trace"]


@dataclass(frozen=True)
class TraceFile:
    """A trace that was written.

    Attributes:
        path: The file, which ui.perfetto.dev can open.
        messages: The number of served messages in it.
        spans: The number of spans of the program in it.
        failed: Hosts that did not reply to every request; their data is missing.
    """

    path: Path
    messages: int
    spans: int
    failed: tuple[HostFailure, ...]


def trace_path(path: str | os.PathLike[str] | None) -> Path:
    """Return the path of a trace; a new name in the working directory if none is given."""
    if path is not None:
        return Path(path)
    return Path(f"mesh-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.pftrace")


def write_trace(
    path: Path,
    query: QueryFunction,
    schemas: Mapping[str, pa.Schema],
    since_us: int | None,
    until_us: int,
) -> TraceFile:
    """Write a trace; an existing file is replaced when the trace is complete.

    Args:
        path: The file; if its name ends in `.gz`, it is compressed.
        query: Queries the hosts.
        schemas: The existing tables.
        since_us: The start, in microseconds since the epoch; None for the oldest row.
        until_us: The end, exclusive.

    Raises:
        TelemetryError: No host replied.
        OSError: The file cannot be written.
    """
    with trace_output(path) as file:
        rows = ProfileRows(query, schemas, since_us, until_us)
        trace = ProfileTrace(rows)
        for piece in trace.pieces():
            file.write(piece)
    failed = tuple(HostFailure(host, cause) for host, cause in sorted(rows.failed.items()))
    return TraceFile(path, trace.messages, trace.spans, failed)
