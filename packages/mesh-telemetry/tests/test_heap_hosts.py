"""Heap snapshots of processes of other hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from heap_checks import leaks_of, while_it_runs
from leaking_actors import Leaky
from recorded_actors import LIMIT_S
from recorded_program import config
from workers import workers

from mesh_core import attach_to_workers, shutdown_context
from mesh_telemetry import HeapSnapshot, Telemetry


@pytest.fixture(scope="session")
def preloaded_too() -> tuple[str, ...]:
    """Nothing: memray takes seconds to start in a process that has loaded Arrow."""
    return ()


def test_processes_of_other_hosts_are_tracked(place: Path) -> None:
    with workers(1) as started, Telemetry(config(place)) as telemetry:
        hosts = attach_to_workers([worker.address for worker in started])
        procs = hosts.spawn_procs({"gpus": 1}, name="far")
        actors: Any = procs.spawn("leaky", Leaky)
        actors.leak.call().get(LIMIT_S)
        rows = telemetry.query("select proc from procs where mesh = 'far'").table.to_pylist()
        snapshot: HeapSnapshot = while_it_runs(
            lambda: telemetry.heap_snapshot(rows[0]["proc"], seconds=1.0),
            lambda: actors.leak.call().get(LIMIT_S),
        )
        assert leaks_of(snapshot.table.to_pylist())
        shutdown_context().get(LIMIT_S)
