"""A scrape of a program with several hosts, and with a host that is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_scrapes import scraped_until
from recorded_actors import LIMIT_S, Worker
from recorded_program import config
from workers import WorkerProcess, workers

from mesh_core import attach_to_workers, configured, shutdown_context
from mesh_telemetry import Telemetry


@pytest.fixture
def two() -> Iterator[list[WorkerProcess]]:
    # Host numbers are unique within a job, so each test starts a new job.
    shutdown_context().get(LIMIT_S)
    # The death of a host must not end the program before the test does.
    with configured(heartbeat_s=4.0, failure_grace_s=LIMIT_S), workers(2) as started:
        yield started
        shutdown_context().get(LIMIT_S)


@pytest.mark.slow
def test_a_lost_host_is_reported_and_the_others_reply(
    place: Path, two: list[WorkerProcess]
) -> None:
    hosts = attach_to_workers([worker.address for worker in two])
    with Telemetry(config(place)) as telemetry, telemetry.serve() as serving:
        procs = hosts.spawn_procs(name="far")
        actors: Any = procs.spawn("workers", Worker, restart="temporary")
        actors.work.call(1).get(LIMIT_S)
        scraped_until(serving, "mesh_hosts", 3, state="up")
        both = scraped_until(serving, "steps_total", 4)
        # All hosts of this test are the same machine, but they have different labels.
        of = {one.labels["rank"]: one.labels["host"] for one in both.samples("steps_total")}
        assert len(set(of.values())) == 2
        two[1].power_off()
        scraped_until(serving, "mesh_telemetry_hosts_unreachable", 1)
        scrape = scraped_until(serving, "mesh_hosts", 2, state="up")
        assert scrape.total("mesh_hosts", state="unreachable") == 1
        assert [one.labels["host"] for one in scrape.samples("steps_total")] == [of["0"]]
        assert scrape.total("mesh_processes", mesh="far") == 1
    # The next program on the host removes the files of the lost one.
    with Telemetry(config(place)):
        pass
