"""Query a running mesh with SQL.

`Telemetry` records a program and the processes that it spawns, each on its own host, and runs
SQL queries over the rows of all hosts.
"""

from mesh_telemetry._archive.archive import Archive as Archive
from mesh_telemetry._debug.debugging import DebugConsole as DebugConsole
from mesh_telemetry._disk.stored_runs import Run as Run
from mesh_telemetry._errors import CoverageError as CoverageError
from mesh_telemetry._errors import DebugError as DebugError
from mesh_telemetry._errors import HeapError as HeapError
from mesh_telemetry._errors import PySpyError as PySpyError
from mesh_telemetry._errors import QueryError as QueryError
from mesh_telemetry._errors import StorageError as StorageError
from mesh_telemetry._errors import TelemetryError as TelemetryError
from mesh_telemetry._hangs.hang import Culprit as Culprit
from mesh_telemetry._hangs.hang import Hang as Hang
from mesh_telemetry._hangs.hang import WaitingCollective as WaitingCollective
from mesh_telemetry._hangs.slow_ranks import SlowRank as SlowRank
from mesh_telemetry._heap.snapshot import HeapSnapshot as HeapSnapshot
from mesh_telemetry._options import TelemetryConfig as TelemetryConfig
from mesh_telemetry._otlp.options import OtlpConfig as OtlpConfig
from mesh_telemetry._query.coverage import Coverage as Coverage
from mesh_telemetry._query.coverage import HostFailure as HostFailure
from mesh_telemetry._query.coverage import QueryResult as QueryResult
from mesh_telemetry._query.coverage import TransferStats as TransferStats
from mesh_telemetry._query.stream import Stream as Stream
from mesh_telemetry._stacks.dump import ProcFailure as ProcFailure
from mesh_telemetry._stacks.dump import StackDump as StackDump
from mesh_telemetry._stacks.flame_graph import FlameGraph as FlameGraph
from mesh_telemetry._steps.step_recorder import mark_step as mark_step
from mesh_telemetry._telemetry import Telemetry as Telemetry


def __getattr__(name: str) -> object:
    if name == "__version__":
        # Few programs read the version.
        from importlib.metadata import version  # noqa: PLC0415

        return version("torchmesh-telemetry")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
