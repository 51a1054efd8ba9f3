"""The public names of `mesh_telemetry`; imported when the first of them is used."""

from mesh_telemetry._archive.archive import Archive
from mesh_telemetry._debug.debugging import DebugConsole
from mesh_telemetry._disk.stored_runs import Run
from mesh_telemetry._errors import (
    CoverageError,
    DebugError,
    HeapError,
    PySpyError,
    QueryError,
    StorageError,
    TelemetryError,
)
from mesh_telemetry._hangs.hang import Culprit, Hang, WaitingCollective
from mesh_telemetry._hangs.slow_ranks import SlowRank
from mesh_telemetry._heap.snapshot import HeapSnapshot
from mesh_telemetry._options import TelemetryConfig
from mesh_telemetry._otlp.options import OtlpConfig
from mesh_telemetry._query.coverage import Coverage, HostFailure, QueryResult, TransferStats
from mesh_telemetry._query.stream import Stream
from mesh_telemetry._stacks.dump import ProcFailure, StackDump
from mesh_telemetry._stacks.flame_graph import FlameGraph
from mesh_telemetry._steps.step_recorder import mark_step
from mesh_telemetry._telemetry import Telemetry

__all__ = [
    "Archive",
    "Coverage",
    "CoverageError",
    "Culprit",
    "DebugConsole",
    "DebugError",
    "FlameGraph",
    "Hang",
    "HeapError",
    "HeapSnapshot",
    "HostFailure",
    "OtlpConfig",
    "ProcFailure",
    "PySpyError",
    "QueryError",
    "QueryResult",
    "Run",
    "SlowRank",
    "StackDump",
    "StorageError",
    "Stream",
    "Telemetry",
    "TelemetryConfig",
    "TelemetryError",
    "TransferStats",
    "WaitingCollective",
    "mark_step",
]
