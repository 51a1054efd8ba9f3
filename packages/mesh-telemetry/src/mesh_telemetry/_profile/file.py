"""A trace of a program as a file, which ui.perfetto.dev shows."""

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

    from mesh_telemetry._profile.rows import Asking

__all__ = ["TraceFile", "trace_path", "write_trace"]


@dataclass(frozen=True)
class TraceFile:
    """A trace that was written.

    Attributes:
        path: Where it is; ui.perfetto.dev opens it.
        messages: How many served messages are in it.
        spans: How many spans of the program.
        failed: Hosts that have not answered, or not all that they were asked: what they know is
            not in it.
    """

    path: Path
    messages: int
    spans: int
    failed: tuple[HostFailure, ...]


def trace_path(path: str | os.PathLike[str] | None) -> Path:
    """Gives where to write a trace: at a new name in the working directory if none is given."""
    if path is not None:
        return Path(path)
    return Path(f"mesh-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.pftrace")


def write_trace(
    path: Path,
    ask: Asking,
    schemas: Mapping[str, pa.Schema],
    since_us: int | None,
    until_us: int,
) -> TraceFile:
    """Writes a trace; what was there before is replaced when all of it is written.

    Args:
        path: Where; one that ends in `.gz` is compressed.
        ask: Asks the hosts.
        schemas: The tables that there are.
        since_us: From when on, in microseconds since the epoch; None for as far as rows go.
        until_us: Until before when.

    Raises:
        TelemetryError: No host answers.
        OSError: The file cannot be written.
    """
    with trace_output(path) as file:
        rows = ProfileRows(ask, schemas, since_us, until_us)
        trace = ProfileTrace(rows)
        for piece in trace.pieces():
            file.write(piece)
    failed = tuple(HostFailure(host, cause) for host, cause in sorted(rows.failed.items()))
    return TraceFile(path, trace.messages, trace.spans, failed)
