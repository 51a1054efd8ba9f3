"""Several hosts: each stores its own rows, and the rows that are lost with one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_actors import LIMIT_S, Worker
from recorded_program import config, host_folders, rows, wait_for_rows
from workers import WorkerProcess, workers

from mesh_core import attach_to_workers, configured, shutdown_context
from mesh_core.testing import kill_proc, wait_until
from mesh_telemetry import Telemetry
from mesh_telemetry._hosts.host_handle import HostHandle
from mesh_telemetry._tables.host_tables import HostTables


@pytest.fixture
def two() -> Iterator[list[WorkerProcess]]:
    # Host numbers are unique within a job, so each test starts a new job.
    shutdown_context().get(LIMIT_S)
    # Heartbeats may be late on a busy machine. The death of a host must not end the program before
    # the test does.
    with configured(heartbeat_s=4.0, failure_grace_s=LIMIT_S), workers(2) as started:
        yield started
        shutdown_context().get(LIMIT_S)


def handles(telemetry: Telemetry) -> list[HostHandle]:
    return telemetry._started().hosts.call_one().get(LIMIT_S)


def test_each_host_has_its_own_rows(place: Path, two: list[WorkerProcess]) -> None:
    hosts = attach_to_workers([worker.address for worker in two])
    with Telemetry(config(place)) as telemetry:
        procs = hosts.spawn_procs({"gpus": 2}, name="far")
        actors: Any = procs.spawn("workers", Worker)
        actors.work.call(1).get(LIMIT_S)
        actors.shout.call("from afar").get(LIMIT_S)
        assert [(one.number, one.error) for one in handles(telemetry)] == [
            (0, None),
            (1, None),
            (2, None),
        ]
        wait_until(lambda: len(host_folders(place)) == 3, LIMIT_S)
        for number, folder in enumerate(host_folders(place)):
            tables = HostTables(folder)
            if number == 0:
                assert rows(tables, "spans") == []
                # The program may contain meshes of earlier tests.
                for name in ("far", "workers"):
                    assert len(wait_for_rows(tables, "meshes", 1, given_name=name)) == 1
                continue
            assert len(wait_for_rows(tables, "spans", 4)) == 4
            lines = wait_for_rows(tables, "logs", 2, line="from afar")
            assert {row["proc"].partition(".")[0] for row in lines} == {str(number)}
            assert {row["mesh"] for row in rows(tables, "procs")} == {"agent", "far"}
    assert host_folders(place) == []


def test_the_death_of_a_process_is_recorded_on_its_host(
    place: Path, two: list[WorkerProcess]
) -> None:
    hosts = attach_to_workers([worker.address for worker in two])
    with Telemetry(config(place)) as telemetry:
        procs = hosts.spawn_procs(name="far")
        actors: Any = procs.spawn("workers", Worker, restart="permanent")
        actors.shout.call("last words").get(LIMIT_S)
        handles(telemetry)
        wait_until(lambda: len(host_folders(place)) == 3, LIMIT_S)
        tables = HostTables(host_folders(place)[2])
        wait_for_rows(tables, "procs", 1, mesh="agent")
        kill_proc(procs, 1)
        (death,) = wait_for_rows(tables, "failures", 1, kind="proc")
        assert (death["rank"], death["signal"], death["mesh"]) == (1, 9, "far")
        assert "last words" in death["log_tail"]


def test_a_dead_host_is_reported_and_the_others_continue(
    place: Path, two: list[WorkerProcess]
) -> None:
    hosts = attach_to_workers([worker.address for worker in two])
    with Telemetry(config(place)) as telemetry:
        procs = hosts.spawn_procs(name="far")
        actors: Any = procs.spawn("workers", Worker, restart="temporary")
        actors.work.call(1).get(LIMIT_S)
        assert len(handles(telemetry)) == 3
        two[1].power_off()
        wait_until(lambda: handles(telemetry)[2].error is not None, LIMIT_S)
        lost = handles(telemetry)[2]
        assert lost.rows is None
        assert lost.number == 2
        assert "host" in (lost.error or "").lower()
        assert [one.error for one in handles(telemetry)[:2]] == [None, None]
        actors.slice(hosts=0).work.call_one(2).get(LIMIT_S)
        wait_for_rows(HostTables(host_folders(place)[1]), "spans", 4)
    # The next program on the host removes the files of the lost one.
    with Telemetry(config(place)):
        wait_until(lambda: len(host_folders(place)) == 1, LIMIT_S)


def test_a_restarted_query_server_has_all_rows_of_its_host(
    place: Path, two: list[WorkerProcess]
) -> None:
    hosts = attach_to_workers([worker.address for worker in two])
    with Telemetry(config(place)) as telemetry:
        actors: Any = hosts.spawn_procs(name="far").spawn("workers", Worker)
        actors.work.call(1).get(LIMIT_S)
        before = handles(telemetry)
        lost = {handle.rows for handle in before}
        for handle in before:
            assert handle.rows is not None
            kill_proc(handle.rows)

        def are_back() -> bool:
            found = {handle.rows for handle in handles(telemetry)}
            return None not in found and not found & lost

        wait_until(are_back, LIMIT_S)
        for handle in handles(telemetry):
            assert handle.rows is not None
            assert handle.rows.name.call_one().get(LIMIT_S)
        for folder in host_folders(place)[1:]:
            wait_for_rows(HostTables(folder), "spans", 2)
