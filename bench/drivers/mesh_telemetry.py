"""Drives mesh-telemetry: a program with workers on this host."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.accounting import descendants, name_of, own_bytes
from bench.drivers.actor_program import ActorApi
from bench.drivers.mesh import AsyncWorker, BlockingWorker
from bench.drivers.telemetry_program import TelemetryDriver
from mesh_core import shutdown_context, this_host
from mesh_telemetry import Telemetry

if TYPE_CHECKING:
    from mesh_telemetry import QueryResult

_NAME = "mesh-telemetry"
_QUERY_NAME = "mesh-query"


class MeshTelemetryDriver(TelemetryDriver):
    """Workers of Mesh."""

    has_dashboard = find_spec("mesh_telemetry._dash.dashboard") is not None

    def spawn_more(self, meshes: int) -> None:
        """Spawn this number of additional meshes and wait until all of their actors reply."""
        # Spawns in batches to limit the number of messages in transit.
        for at in range(0, meshes, 50):
            names = [f"w{number}" for number in range(at, min(at + 50, meshes))]
            some = [self._procs.spawn(name, BlockingWorker) for name in names]
            for mesh in some:
                mesh.noop.call(0).get()

    def record_host(self) -> None:
        self.telemetry = Telemetry().start()

    def query(self, sql: str) -> QueryResult:
        return self.telemetry.query(sql)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.query(sql).table.to_pylist()
        return rows

    def store_dump(self, dump_id: str, dump: dict[str, Any]) -> None:
        self.telemetry.store_pyspy_dump(dump_id, "the benchmark", json.dumps(dump))

    def folder_bytes(self, pid: int) -> int:
        """Return the size of the stored events of a process on this host."""
        sql = "select kept_bytes from procs where pid = $1"
        (row,) = self.telemetry.query(sql, [pid]).table.to_pylist()
        kept: int = row["kept_bytes"]
        return kept

    def kept_bytes(self) -> int:
        found = 0
        for pid in descendants(os.getpid()):
            with suppress(OSError):
                found += own_bytes(pid) if name_of(pid).startswith((_NAME, _QUERY_NAME)) else 0
        return found

    def close(self) -> None:
        if hasattr(self, "telemetry"):
            self.telemetry.close()
        super().close()


def driver() -> MeshTelemetryDriver:
    """Return the driver of mesh-telemetry."""
    api = ActorApi(this_host, shutdown_context, BlockingWorker, AsyncWorker)
    return MeshTelemetryDriver(_NAME.replace("-", "_"), api)
