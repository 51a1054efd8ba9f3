"""Drives the telemetry of the peer, `torchmonarch` 0.7.0: a job with one host on this machine."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from monarch.actor import shutdown_context  # type: ignore[import-not-found]
from monarch.job import ProcessJob, TelemetryConfig  # type: ignore[import-not-found]

from bench.accounting import own_bytes
from bench.drivers.actor_program import ActorApi
from bench.drivers.monarch import AsyncWorker, BlockingWorker
from bench.drivers.telemetry_program import TelemetryDriver


class MonarchTelemetryDriver(TelemetryDriver):
    """Workers of the peer; they belong to a job with or without telemetry."""

    def __init__(self) -> None:
        self._job = ProcessJob({"hosts": 1})
        api = ActorApi(self._hosts, shutdown_context, BlockingWorker, AsyncWorker)
        super().__init__("monarch_telemetry", api)

    def record_host(self) -> None:
        # Disables the features that are not measured.
        config = TelemetryConfig(dashboard_port=0, snapshot_interval_secs=0)
        self._job.enable_telemetry(config)

    def query(self, sql: str) -> Any:
        return self._client.query(sql)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.query(sql)["rows"]
        return rows

    def store_dump(self, dump_id: str, dump: dict[str, Any]) -> None:
        stored = json.dumps({"Ok": dump})
        self._client.store_pyspy_dump(dump_id, "the benchmark", stored)

    def folder_bytes(self, pid: int) -> int:
        """Return 0: the peer stores no events in files."""
        return 0

    def kept_bytes(self) -> int:
        """Return the memory of the process that collects the rows."""
        found = 0
        for one in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if b"job_sidecar" in one.read_bytes():
                    found += own_bytes(int(one.parent.name))
            except OSError:
                continue
        return found

    def close(self) -> None:
        # The runner kills processes that hang.
        with suppress(TimeoutError):
            self._job.kill()
        sys.stdout.flush()
        os._exit(0)

    def _hosts(self) -> Any:
        state = self._job.state(cached_path=None)
        self._client = state.query_engine_client
        return state.hosts


def driver() -> MonarchTelemetryDriver:
    """Return the driver of the peer."""
    return MonarchTelemetryDriver()
