"""Query a running mesh with SQL.

`Telemetry` records a program and the processes that it spawns, each on its own host, and runs
SQL queries over the rows of all hosts.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from types import ModuleType as _ModuleType

    from mesh_telemetry._api import Archive as Archive
    from mesh_telemetry._api import Coverage as Coverage
    from mesh_telemetry._api import CoverageError as CoverageError
    from mesh_telemetry._api import Culprit as Culprit
    from mesh_telemetry._api import DebugConsole as DebugConsole
    from mesh_telemetry._api import DebugError as DebugError
    from mesh_telemetry._api import FlameGraph as FlameGraph
    from mesh_telemetry._api import Hang as Hang
    from mesh_telemetry._api import HeapError as HeapError
    from mesh_telemetry._api import HeapSnapshot as HeapSnapshot
    from mesh_telemetry._api import HostFailure as HostFailure
    from mesh_telemetry._api import OtlpConfig as OtlpConfig
    from mesh_telemetry._api import ProcFailure as ProcFailure
    from mesh_telemetry._api import PySpyError as PySpyError
    from mesh_telemetry._api import QueryError as QueryError
    from mesh_telemetry._api import QueryResult as QueryResult
    from mesh_telemetry._api import Run as Run
    from mesh_telemetry._api import SlowRank as SlowRank
    from mesh_telemetry._api import StackDump as StackDump
    from mesh_telemetry._api import StorageError as StorageError
    from mesh_telemetry._api import Stream as Stream
    from mesh_telemetry._api import Telemetry as Telemetry
    from mesh_telemetry._api import TelemetryConfig as TelemetryConfig
    from mesh_telemetry._api import TelemetryError as TelemetryError
    from mesh_telemetry._api import TransferStats as TransferStats
    from mesh_telemetry._api import WaitingCollective as WaitingCollective
    from mesh_telemetry._api import mark_step as mark_step


def __getattr__(name: str) -> object:
    if name == "__version__":
        # Few programs read the version.
        from importlib.metadata import version  # noqa: PLC0415

        return version("torchmesh-telemetry")
    if name == "__all__":
        # For `from mesh_telemetry import *`.
        return list(_load_api().__all__)
    if name.startswith("_") or name not in _load_api().__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(_load_api(), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_load_api().__all__})


def _load_api() -> "_ModuleType":
    # Recorded processes, query processes and commands need none of these names.
    from mesh_telemetry import _api  # noqa: PLC0415

    return _api
